#pragma once

// Commands about jobs: they ask the coordinator that is up, and, to look only, the job database.

#include "client/commands/common.h"

namespace harmony::client {

int SubmitCommand(const GlobalOptions& global, const JobOptions& options);
int ListCommand(const GlobalOptions& global);
// No job: the processes and all jobs. Else one job, with its devices while it runs.
int StatusCommand(const GlobalOptions& global, const std::string& job_id);
// The job that somebody means who names none: the one that runs (or waits for something outside);
// else the one whose turn is next; else the newest. Null when there are none.
const v1::Job* JobToWatch(const v1::ListResponse& list);
// Shows progress until the job (none: JobToWatch) ends; exit code as `harmony run` would have it.
int WatchCommand(const GlobalOptions& global, const std::string& job_id);
int CancelCommand(const GlobalOptions& global, const std::string& job_id);
int PauseCommand(const GlobalOptions& global, const std::string& job_id);
int ResumeCommand(const GlobalOptions& global, const std::string& job_id);

}  // namespace harmony::client
