#include "bench/published_planner/files/schedule_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/io/file.h"

namespace harmony::published {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxScheduleBytes = 1 << 20;
constexpr int64_t kMaxLayers = 1 << 20;

absl::StatusOr<int64_t> Whole(const Json& json, absl::string_view field) {
  if (!json.is_number_integer() || json.get<double>() < 0 || json.get<double>() > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is not a whole number in 0..", kMaxLayers, ": ", json.dump()));
  }
  return json.get<int64_t>();
}

absl::StatusOr<const Json*> Field(const Json& json, const char* field) {
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  const auto found = json.find(field);
  if (found == json.end()) return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
  return &*found;
}

absl::StatusOr<int64_t> ReadSize(const Json& json, const char* field) {
  HARMONY_ASSIGN_OR_RETURN(const Json* value, Field(json, field));
  return Whole(*value, field);
}

absl::StatusOr<std::vector<Pack>> ReadPacks(const Json& json, const char* field) {
  HARMONY_ASSIGN_OR_RETURN(const Json* list, Field(json, field));
  if (!list->is_array()) return absl::InvalidArgumentError(absl::StrCat(field, " is no array"));
  std::vector<Pack> packs;
  for (size_t k = 0; k < list->size(); ++k) {
    const std::string name = absl::StrCat(field, "[", k, "]");
    const Json& pair = (*list)[k];
    if (!pair.is_array() || pair.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is not [first, last]"));
    }
    HARMONY_ASSIGN_OR_RETURN(const int64_t first, Whole(pair[0], name));
    HARMONY_ASSIGN_OR_RETURN(const int64_t last, Whole(pair[1], name));
    packs.push_back({static_cast<int>(first), static_cast<int>(last)});
  }
  return packs;
}

absl::StatusOr<Schedule> FromJson(const Json& json) {
  Schedule schedule;
  HARMONY_ASSIGN_OR_RETURN(schedule.u_fwd, ReadSize(json, "u_fwd"));
  HARMONY_ASSIGN_OR_RETURN(schedule.forward, ReadPacks(json, "pack_fwd"));
  HARMONY_ASSIGN_OR_RETURN(schedule.u_bwd, ReadSize(json, "u_bwd"));
  HARMONY_ASSIGN_OR_RETURN(schedule.backward, ReadPacks(json, "pack_bwd"));
  return schedule;
}

}  // namespace

absl::StatusOr<Schedule> ParseSchedule(absl::string_view text, absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const Json json, document::ParseJsonFields(text, where));
  absl::StatusOr<Schedule> schedule = FromJson(json);
  if (!schedule.ok()) return WithContext(schedule.status(), where);
  return schedule;
}

absl::StatusOr<Schedule> ReadSchedule(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, io::ReadWholeFile(path, kMaxScheduleBytes));
  return ParseSchedule(text, path);
}

}  // namespace harmony::published
