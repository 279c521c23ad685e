#pragma once

// Reads a config.json with the checks that each family's parser needs. Private to this folder.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"

namespace harmony::model {

// Holds references to the object and to `where` (the file's path, put in front of messages). The
// first error is kept and later reads return defaults, so that a parser reads all its keys in a row
// and looks at status() once. A key that is null counts as absent.
class ConfigReader {
 public:
  // `prefix` names the object in messages ("rope_scaling."); empty for the top level.
  ConfigReader(const nlohmann::json& object, absl::string_view where,
               absl::string_view prefix = "");

  const absl::Status& status() const { return status_; }
  bool Has(absl::string_view key) const;
  // There, and null: for the few keys whose default when absent is another one.
  bool IsNull(absl::string_view key) const;

  // Integers within [1, max]; the first form requires the key.
  int64_t RequiredSize(absl::string_view key, int64_t max);
  int64_t Size(absl::string_view key, int64_t fallback, int64_t max);
  // A finite number within [min, max].
  double Number(absl::string_view key, double fallback, double min, double max);
  double RequiredNumber(absl::string_view key, double min, double max);
  bool Flag(absl::string_view key, bool fallback);
  std::string Text(absl::string_view key, absl::string_view fallback);
  // Empty when absent; InvalidArgument when it is there and no object.
  std::optional<ConfigReader> Object(absl::string_view key);

  // Unimplemented "<where>: '<key>' is <value>: not supported (<why>)".
  void Refuse(absl::string_view key, absl::string_view why);
  // InvalidArgument "<where>: '<key>' is <value>: <why>".
  void Reject(absl::string_view key, absl::string_view why);
  // Refuses a key whose value differs from a harmless one (absent, null and false are harmless).
  void RefuseUnlessFalse(absl::string_view key, absl::string_view why);
  void RefuseUnlessNumber(absl::string_view key, double harmless, absl::string_view why);
  // Takes over the error of a reader of a nested object.
  void Adopt(const absl::Status& status);

  const nlohmann::json* Find(absl::string_view key) const;

 private:
  void Fail(absl::StatusCode code, absl::string_view key, absl::string_view why);

  const nlohmann::json& object_;
  std::string where_;
  std::string prefix_;
  absl::Status status_;
};

inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = 10'000;
inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Activation ReadActivation(ConfigReader& reader, absl::string_view key, absl::string_view fallback);

// The families' parsers: fill in `config` (model_type is set) and leave errors in the reader.
void ParseGpt2Config(ConfigReader& reader, ModelConfig& config);
void ParseLlamaConfig(ConfigReader& reader, ModelConfig& config);

}  // namespace harmony::model
