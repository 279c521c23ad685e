#include "common/runtime/profile_call.h"

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"

namespace harmony::runtime {
namespace {

absl::StatusOr<ProfileCall> ReadProfileCall(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, io::ReadWholeFile(path, limits::kMostFileBytes));
  ProfileCall call;
  HARMONY_ASSIGN_OR_RETURN(call.request, profile::ParseProfileRequest(text, path));
  HARMONY_ASSIGN_OR_RETURN(call.job, job::JobSpecFromJson(call.request.job_json, path));
  HARMONY_ASSIGN_OR_RETURN(call.architecture,
                           model::ParseArchitecture(call.request.config_json, path));
  HARMONY_ASSIGN_OR_RETURN(call.model, job::ModelOf(call.architecture, call.job));
  return call;
}

}  // namespace

absl::Status AnswerProfileCall(
    const std::string& path,
    const std::function<absl::StatusOr<profile::Profile>(const ProfileCall& call)>& measure) {
  HARMONY_ASSIGN_OR_RETURN(const ProfileCall call, ReadProfileCall(path));
  const absl::StatusOr<profile::Profile> profile = measure(call);
  HARMONY_RETURN_IF_ERROR(io::WriteFileAtomically(
      call.request.output, profile.ok() ? profile::ProfilePartToJson(call.request.part, *profile)
                                        : profile::ProfileFailureToJson(profile.status())));
  return profile.status();
}

absl::StatusOr<std::vector<double>> TimeRepeats(const RepeatLimits& limits,
                                                const std::function<absl::Status()>& work,
                                                const Clock& clock) {
  const Nanos began = clock.Now();
  do {
    HARMONY_RETURN_IF_ERROR(work());
  } while (clock.Now() - began < limits.warm_up);
  std::vector<double> seconds;
  Nanos total;
  while (static_cast<int>(seconds.size()) < limits.least ||
         (static_cast<int>(seconds.size()) < limits.most && total < limits.enough)) {
    const Nanos start = clock.Now();
    HARMONY_RETURN_IF_ERROR(work());
    const Nanos took = clock.Now() - start;
    seconds.push_back(took.seconds());
    total += took;
  }
  return seconds;
}

}  // namespace harmony::runtime
