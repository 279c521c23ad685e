#include "common/io/model_graphs.h"

#include <openssl/evp.h>

#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace harmony::io {

std::string GraphDigest(absl::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  // It fails where OpenSSL was built without SHA-256: no name is that of any file then.
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return "";
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

absl::StatusOr<GraphText> ReadGraph(const std::string& directory, const std::string& digest) {
  const std::string path = JoinPath(directory, absl::StrCat("graphs/", digest, ".json"));
  HARMONY_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path, limits::kMostFileBytes));
  const std::string actual = GraphDigest(text);
  if (actual == digest) return GraphText{path, std::move(text)};
  return absl::DataLossError(absl::StrCat(path, ": the SHA-256 of its contents is ", actual,
                                          ", not its name: copy or export the model again"));
}

absl::Status CheckGraphs(const std::string& directory, const model::ExportedModel& exported) {
  for (const model::ExportedGraph& graph : exported.graphs) {
    HARMONY_RETURN_IF_ERROR(ReadGraph(directory, graph.digest).status());
  }
  return absl::OkStatus();
}

}  // namespace harmony::io
