#include "common/document/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::document {
namespace {

constexpr size_t kMaxText = 1 << 20;

// Events of a document that nobody wants.
class IgnoreEvents : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

absl::Status CheckCharacters(absl::string_view text, absl::string_view where) {
  int line = 1;
  for (const char c : text) {
    line += c == '\n';
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t') continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ":", line, ": not valid YAML: a control character"));
  }
  return absl::OkStatus();
}

}  // namespace

// yaml-cpp throws; nothing of that leaves this function. Its LoadAll can loop for ever on a
// malformed text: hence the second look for another document.
absl::StatusOr<YAML::Node> ParseYaml(absl::string_view text, absl::string_view where) {
  if (text.size() > kMaxText) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": is larger than 1 MiB"));
  }
  HARMONY_RETURN_IF_ERROR(CheckCharacters(text, where));
  try {
    YAML::Node root = YAML::Load(std::string(text));
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    IgnoreEvents ignore;
    if (parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": holds more than one document"));
    }
    return root;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ":", error.mark.line + 1, ": not valid YAML: ", error.msg));
  }
}

}  // namespace harmony::document
