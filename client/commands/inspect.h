#pragma once

// Commands that show what there is besides jobs: plans and logs.

#include <string>

#include "client/commands/common.h"

namespace harmony::client {

struct PlanOptions {
  JobOptions job;
  ClusterOptions cluster;
  bool explain = false;
  bool compare = false;  // beside what people do today, instead of the plan
};
// With --devices, or where no coordinator is up: plans for itself (`harmony-coordinator
// --plan-once`). Else asks the coordinator, for the devices it has. Compares (`harmony-compare`)
// always for itself: FailedPrecondition where it would have to ask.
int PlanCommand(const GlobalOptions& global, const PlanOptions& options);

struct LogsOptions {
  std::string job_id;   // what the coordinator reported of this job, instead of the processes' logs
  std::string process;  // only this log, e.g. "worker-0"
  int lines = 50;       // of each process
  bool follow = false;  // and then those that come, until Ctrl-C
};
int LogsCommand(const GlobalOptions& global, const LogsOptions& options);

}  // namespace harmony::client
