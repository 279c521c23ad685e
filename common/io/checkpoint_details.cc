#include "common/io/checkpoint_details.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/document/json_fields.h"
#include "common/io/fingerprint_json.h"

namespace harmony::io {

std::string ToJson(const CheckpointDetails& details) {
  nlohmann::json json = {{"data_position", details.data_position},
                         {"job", details.job_json},
                         {"weight_map", details.weight_map_json},
                         {"source_directory", details.source_directory},
                         {"compute_threads", details.compute_threads},
                         {"cpu_capability", details.cpu_capability},
                         {"seed", details.seed}};
  if (details.data) json["data"] = ToJson(*details.data);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<CheckpointDetails> CheckpointDetailsFromJson(absl::string_view text,
                                                            absl::string_view where) {
  CheckpointDetails details;
  const std::string place = absl::StrCat(where, ": details of the checkpoint");
  const absl::Status read = document::ReadJson(text, place, [&](const document::JsonField& root) {
    root.Only({"data_position", "job", "weight_map", "source_directory", "compute_threads",
               "cpu_capability", "seed", "data"});
    details.data_position = root.Get("data_position").Integer(0);
    details.job_json = root.Get("job").Text();
    details.weight_map_json = root.Get("weight_map").Text();
    details.source_directory = root.Get("source_directory").Text();
    details.compute_threads = root.Get("compute_threads").Integer(0);
    details.cpu_capability = root.Get("cpu_capability").Text();
    details.seed = root.Get("seed").Unsigned();
    if (root.Has("data")) details.data = ReadFingerprint(root.Get("data"));
  });
  if (!read.ok()) return absl::DataLossError(read.message());
  return details;
}

}  // namespace harmony::io
