#include "common/job/goes_on.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/job/job_file.h"
#include "common/job/job_keys.h"

namespace harmony::job {
namespace {

bool MayDiffer(absl::string_view difference) {
  return absl::StartsWith(difference, "max_steps (") ||
         absl::StartsWith(difference, "learning_rate_after (");
}

// The job of those keys, where it differs from `after` in no other than those that may.
absl::StatusOr<JobSpec> JobBefore(absl::string_view keys, const JobSpec& after) {
  JobSpec before = after;
  before.learning_rate_after.clear();
  for (const absl::string_view line : absl::StrSplit(keys, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.first == "max_steps" && !absl::SimpleAtoi(parts.second, &before.max_steps)) {
      return absl::FailedPreconditionError(absl::StrCat("its keys are damaged: ", line));
    }
    if (parts.first != "learning_rate_after") continue;
    const auto rates = nlohmann::json::parse(parts.second, nullptr, /*allow_exceptions=*/false);
    if (!rates.is_object()) {
      return absl::FailedPreconditionError(absl::StrCat("its keys are damaged: ", line));
    }
    JobValue value;
    value.kind = JobValue::Kind::kMap;
    for (const auto& [step, rate] : rates.items()) {
      value.items.push_back(absl::StrCat(step, "=", rate.dump()));
    }
    const JobKey* const key = FindJobKey("learning_rate_after");
    HARMONY_RETURN_IF_ERROR(key->read(*key, value, before));
  }
  return before;
}

}  // namespace

absl::Status CheckGoesOn(absl::string_view before, const JobSpec& after,
                         absl::string_view after_keys, int64_t steps) {
  const std::vector<std::string> differences = DifferingKeys(before, after_keys);
  if (differences.empty()) return absl::OkStatus();
  const std::string differ = absl::StrCat("these keys differ: ", absl::StrJoin(differences, ", "));
  if (!absl::c_all_of(differences, MayDiffer)) {
    const auto among = [&](absl::string_view key) {
      return absl::c_any_of(differences,
                            [key](absl::string_view text) { return absl::StartsWith(text, key); });
    };
    if (among("model (") && !among("model_name_or_path (")) {
      return absl::FailedPreconditionError(absl::StrCat(
          differ,
          "; `model` is a checksum of what config.json or model.json say that the model "
          "computes: this has changed since that run began, and going on would give the "
          "result of neither"));
    }
    return absl::FailedPreconditionError(
        among("learning_rate (")
            ? absl::StrCat(differ, "; to go on with another rate, leave learning_rate and give ",
                           "learning_rate_after: {", steps, ": RATE}")
            : differ);
  }
  if (after.max_steps < steps) {
    return absl::FailedPreconditionError(absl::StrCat(differ, "; ", steps, " steps are done"));
  }
  HARMONY_ASSIGN_OR_RETURN(const JobSpec old, JobBefore(before, after));
  for (int64_t step = 0; step < steps; ++step) {
    const double had = LearningRateAt(old, step), has = LearningRateAt(after, step);
    if (had == has) continue;
    const bool schedule = after.learning_rate_after == old.learning_rate_after;
    return absl::FailedPreconditionError(absl::StrCat(
        differ, "; ", steps, " steps are done, and step ", step + 1, " had the learning rate ", had,
        ", where it would have ", has,
        schedule
            ? absl::StrCat(". The schedule follows max_steps: to train on from its last checkpoint "
                           "as another run, give resume_from_checkpoint: PATH and another "
                           "output_dir")
            : absl::StrCat(". Another rate can be given after step ", steps, " or a later one")));
  }
  return absl::OkStatus();
}

}  // namespace harmony::job
