#pragma once

// Commands that ask the coordinator that is up about its jobs.

#include "client/commands/common.h"

namespace harmony::client {

int SubmitCommand(const GlobalOptions& global, const JobOptions& options);
int ListCommand(const GlobalOptions& global);
// No job: the processes and all jobs. Else one job, with its devices while it runs.
int StatusCommand(const GlobalOptions& global, const std::string& job_id);
// Shows progress until the job ends; exit code as `harmony run` would have it.
int WatchCommand(const GlobalOptions& global, const std::string& job_id);
int CancelCommand(const GlobalOptions& global, const std::string& job_id);
int PauseCommand(const GlobalOptions& global, const std::string& job_id);
int ResumeCommand(const GlobalOptions& global, const std::string& job_id);

}  // namespace harmony::client
