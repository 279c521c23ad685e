#include "client/commands/complete.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/command_line/completion.h"
#include "client/commands/stored_jobs.h"

namespace harmony::client {
namespace {

constexpr unsigned kMostSeconds = 3;

GlobalOptions GlobalOf(const GivenOptions& given) {
  const auto value = [&given](const char* name) {
    const auto found = given.find(name);
    return found == given.end() ? std::string() : found->second;
  };
  GlobalOptions global;
  global.runtime_dir = value("runtime-dir");
  global.state_dir = value("state-dir");
  global.bin_dir = value("bin-dir");
  return global;
}

// The newest last, as `list` has them.
std::vector<Candidate> OfferedJobs(const GivenOptions& given) {
  const GlobalOptions global = GlobalOf(given);
  std::vector<Candidate> candidates;
  const auto paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return candidates;
  const absl::StatusOr<KnownJobs> known = FindJobs(global, *paths, "");
  if (!known.ok()) return candidates;
  for (const v1::Job& job : known->jobs) {
    candidates.push_back(
        {job.job_id(), absl::StrCat(StateName(job.state()), ", ", job.output_dir())});
  }
  return candidates;
}

// Those that have left a log.
std::vector<Candidate> Processes(const GivenOptions& given) {
  const GlobalOptions global = GlobalOf(given);
  std::vector<Candidate> candidates;
  const auto paths = ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return candidates;
  for (const std::string& file : LogFiles(PathsInUse(*paths).logs(), "")) {
    candidates.push_back({std::filesystem::path(file).stem()});
  }
  return candidates;
}

}  // namespace

int CompleteCommand(const CLI::App& app, const std::vector<std::string>& words) {
  // Whatever hangs: the signal ends us, and the shell offers nothing.
  alarm(kMostSeconds);
  const std::string text = CompletionText(Complete(app, words, {OfferedJobs, Processes}));
  return fputs(text.c_str(), stdout) < 0 ? 1 : 0;
}

}  // namespace harmony::client
