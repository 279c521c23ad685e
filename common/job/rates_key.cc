#include "common/job/rates_key.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/read_values.h"

namespace harmony::job {

absl::Status ReadRatesAfter(const JobKey& key, const JobValue& value, JobSpec& job) {
  constexpr absl::string_view kMust = "a map of steps to rates, like {2000: 1e-4}";
  job.learning_rate_after.clear();
  if (value.kind != JobValue::Kind::kMap) return Wrong(key, value, kMust);
  for (const std::string& item : value.items) {
    const size_t sign = item.find('=');
    int64_t step = 0;
    if (sign == std::string::npos || !absl::SimpleAtoi(item.substr(0, sign), &step) || step < 0) {
      return Wrong(key, value, kMust);
    }
    if (job.learning_rate_after.contains(step)) {
      return absl::InvalidArgumentError(absl::StrCat(value.origin, ": ", key.name, " gives step ",
                                                     step, " twice: give one rate"));
    }
    JobValue rate;
    rate.text = item.substr(sign + 1);
    rate.origin = value.origin;
    HARMONY_RETURN_IF_ERROR(ReadDouble(key, rate, 0, kHuge, kMust, &job.learning_rate_after[step]));
  }
  return absl::OkStatus();
}

std::string PrintRatesAfter(const JobSpec& job) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [step, rate] : job.learning_rate_after) json[absl::StrCat(step)] = rate;
  return json.dump();
}

}  // namespace harmony::job
