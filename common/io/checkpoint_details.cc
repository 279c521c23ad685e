#include "common/io/checkpoint_details.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace harmony {

std::string ToJson(const CheckpointDetails& details) {
  const nlohmann::json json = {{"data_position", details.data_position},
                               {"job", details.job_json},
                               {"weight_map", details.weight_map_json},
                               {"source_directory", details.source_directory},
                               {"compute_threads", details.compute_threads},
                               {"cpu_capability", details.cpu_capability},
                               {"seed", details.seed}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<CheckpointDetails> CheckpointDetailsFromJson(absl::string_view text,
                                                            absl::string_view where) {
  const nlohmann::json json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  CheckpointDetails details;
  try {
    json.at("data_position").get_to(details.data_position);
    json.at("job").get_to(details.job_json);
    json.at("weight_map").get_to(details.weight_map_json);
    json.at("source_directory").get_to(details.source_directory);
    json.at("compute_threads").get_to(details.compute_threads);
    json.at("cpu_capability").get_to(details.cpu_capability);
    json.at("seed").get_to(details.seed);
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(where, ": details of the checkpoint: ", error.what()));
  }
  return details;
}

}  // namespace harmony
