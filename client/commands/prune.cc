#include "client/commands/prune.h"

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/commands/stored_jobs.h"
#include "client/rpc/proto_json.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

absl::StatusOr<v1::PruneRequest> MakePruneRequest(const PruneOptions& options) {
  if (options.all == !options.older_than.empty()) {
    return absl::InvalidArgumentError(
        "prune: say which of the jobs that have ended: --older-than 30d (or 12h, 2w), or --all");
  }
  v1::PruneRequest request;
  if (options.all) return request;
  HARMONY_ASSIGN_OR_RETURN(const absl::Duration age, ParseAge(options.older_than));
  request.set_ended_before(UtcTimeStamp(absl::Now() - age));  // compared with others as texts
  return request;
}

absl::StatusOr<v1::PruneResponse> Prune(const GlobalOptions& global, const PruneOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(const v1::PruneRequest request, MakePruneRequest(options));
  HARMONY_ASSIGN_OR_RETURN(const RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  if (!IsUp(global, paths)) {
    return PruneStoredJobs(global, paths, request);
  }
  HARMONY_ASSIGN_OR_RETURN(auto client, ConnectToCoordinator(global, paths));
  return client->Prune(request);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseAge(absl::string_view text) {
  // Longer than any job database is old, and far from where a time has no year of four digits.
  constexpr int64_t kMostSeconds = int64_t{100} * 365 * 24 * 3600;
  constexpr absl::string_view kUnits = "smhdw";
  constexpr int64_t kSeconds[] = {1, 60, 3600, 24 * 3600, 7 * 24 * 3600};
  const size_t unit = text.empty() ? absl::string_view::npos : kUnits.find(text.back());
  int64_t count = 0;
  if (unit == absl::string_view::npos || text.front() == '+' ||
      !absl::SimpleAtoi(text.substr(0, text.size() - 1), &count) || count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--older-than ", text,
                     ": a whole number and its unit are expected, such as 90s, 45m, 12h, 30d, 2w"));
  }
  if (count > kMostSeconds / kSeconds[unit]) {
    return absl::InvalidArgumentError(absl::StrCat("--older-than ", text, ": more than 100 years"));
  }
  return absl::Seconds(count * kSeconds[unit]);
}

int PruneCommand(const GlobalOptions& global, const PruneOptions& options) {
  const absl::StatusOr<v1::PruneResponse> done = Prune(global, options);
  if (!done.ok()) return Fail(done.status());
  if (global.json) {
    PrintJson({{"removed", ToJson(*done)["job_ids"]}});
    return 0;
  }
  const int count = done->job_ids_size();
  printf("removed %d job%s%s%s\n", count, count == 1 ? "" : "s", count > 0 ? ": " : "",
         absl::StrJoin(done->job_ids(), ", ").c_str());
  return 0;
}

}  // namespace harmony::client
