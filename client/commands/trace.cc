#include "client/commands/trace.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands/output_file.h"
#include "client/progress/chrome_trace.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

absl::Status Trace(const GlobalOptions& global, const TraceOptions& options) {
  HARMONY_RETURN_IF_ERROR(CheckOutputFile("-o", options.output, {}));
  HARMONY_ASSIGN_OR_RETURN(RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  HARMONY_ASSIGN_OR_RETURN(const SavedTrace trace, SaveTrace(*client, options));
  if (!global.json) {
    printf("%s\n", Describe(trace, options.output).c_str());
    return absl::OkStatus();
  }
  PrintJson({{"file", options.output},
             {"events", trace.measured},
             {"planned_events", trace.planned},
             {"first_step", trace.first_step},
             {"last_step", trace.last_step},
             {"why_not_planned", trace.why_not_planned}});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavedTrace> SaveTrace(CoordinatorClient& client, const TraceOptions& options) {
  v1::GetTimelineRequest request;
  request.set_job_id(options.job_id);
  request.set_last_steps(options.last_steps);
  HARMONY_ASSIGN_OR_RETURN(const v1::Timeline timeline, client.GetTimeline(request));
  HARMONY_RETURN_IF_ERROR_CTX(WriteOutputFile(options.output, ChromeTrace(timeline)), "trace");
  SavedTrace saved;
  saved.measured = timeline.events_size();
  saved.planned = timeline.planned_size();
  saved.why_not_planned = timeline.why_not_planned();
  saved.first_step = timeline.aligned_at_step() + 1;
  for (const v1::TimelineEvent& event : timeline.events()) {
    saved.last_step = std::max(saved.last_step, event.step() + 1);
  }
  return saved;
}

std::string Describe(const SavedTrace& trace, const std::string& path) {
  return absl::StrCat("trace of steps ", trace.first_step, " to ", trace.last_step, " in ", path,
                      ": ", trace.measured, " measured events",
                      trace.planned > 0
                          ? absl::StrCat(", ", trace.planned, " planned ones, aligned where step ",
                                         trace.first_step, " begins")
                          : absl::StrCat("; nothing planned beside them: ", trace.why_not_planned));
}

int TraceCommand(const GlobalOptions& global, const TraceOptions& options) {
  const absl::Status status = Trace(global, options);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace harmony::client
