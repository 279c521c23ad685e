#pragma once

// The part of a measuring process that all of them share: reading the request, timing repeats,
// writing the answer.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/job/job_spec.h"
#include "common/model/architecture.h"
#include "common/profile/profile_json.h"

namespace harmony::runtime {

struct ProfileCall {
  profile::ProfileRequest request;
  job::JobSpec job;
  model::ModelSpec model;
  model::Architecture architecture;  // for the layers
};

// Reads the request at `path`, has it measured, and writes the request's part of what came out, or
// why nothing did, to the request's output. Returns what `measure` returned.
absl::Status AnswerProfileCall(
    const std::string& path,
    const std::function<absl::StatusOr<profile::Profile>(const ProfileCall& call)>& measure);

struct RepeatLimits {
  int least = 3, most = 50;
  Nanos enough = Millis(400);  // no further repeat once they took so long together
  Nanos warm_up = {};          // from the first run on, in which none counts
};
// Of a quick profile.
inline constexpr RepeatLimits kQuickRepeats{5, 20, Millis(150)};

// Seconds of each repeat. The first run is not counted, whatever the warm-up: it touches memory for
// the first time.
absl::StatusOr<std::vector<double>> TimeRepeats(const RepeatLimits& limits,
                                                const std::function<absl::Status()>& work,
                                                const Clock& clock = MonotonicClock());

}  // namespace harmony::runtime
