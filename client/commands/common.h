#pragma once

// What the commands of `harmony` share. A command is a function from its options to the exit code:
// 0, 2 for bad usage or input, 1 for a failure at run time.

#include <signal.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launcher/cluster.h"
#include "client/launcher/runtime_dir.h"
#include "client/rpc/coordinator_client.h"

namespace harmony::client {

struct GlobalOptions {
  std::string runtime_dir, state_dir;  // empty: the defaults of ResolveRuntimePaths
  std::string address;                 // HOST:PORT of a coordinator elsewhere; empty: the one here
  rpc::TlsPaths tls;                   // with `address`
  std::string bin_dir;                 // empty: that of this program
  bool json = false;
};

// What makes a job, from the command line.
struct JobOptions {
  std::string path;
  std::vector<std::string> overrides;  // key=value
  bool overwrite = false;
  std::string profile = {};  // file with measured times to plan by; empty: none
  std::string plan = {};     // file with a plan to run; empty: one is searched for
  bool calibrate = true;     // speeds that nobody gives may be measured
  bool recalibrate = false;  // and are, though they were measured before
};

// What makes a set of processes, from the command line.
struct ClusterOptions {
  std::string config, devices, host_memory;
  bool given() const { return !config.empty() || !devices.empty() || !host_memory.empty(); }
};

// Blocks SignalsThatStop(), for this thread and every one to come; they are read from the
// descriptor.
ipc::UniqueFd TakeOverSignals();

// Signals are as they were when it ends.
class SignalMask {
 public:
  SignalMask() { sigprocmask(SIG_SETMASK, nullptr, &before_); }
  ~SignalMask() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

 private:
  sigset_t before_;
};

// The folder of the programs, and where one of them is, such as "harmony-worker".
std::string BinDir(const GlobalOptions& global);
std::string ProgramPath(const GlobalOptions& global, absl::string_view name);

// The devices that nobody named, for people.
std::string DescribeDefault(const Cluster& cluster);
// As ResolveCluster, of this machine.
absl::StatusOr<Cluster> ResolveClusterHere(const GlobalOptions& global,
                                           const ClusterOptions& options);

// Prints "error: ..." to standard error and returns the exit code.
int Fail(const absl::Status& status);
// From now on as a line of JSON: {"error": {"code": "NOT_FOUND", "message": "..."}}.
void FailInJson();

// Of a command that runs for long: its log has the form of all others, under this name.
void LogToStderr(const std::string& name);

// Says that there is nothing left to do for a job.
void PrintFinishedBefore(FILE* to);

// Prints it to standard output, indented.
void PrintJson(const nlohmann::ordered_json& json);

// Whether a coordinator is up, or a supervisor is there to start it. One elsewhere is taken to be.
bool IsUp(const GlobalOptions& global, const RuntimePaths& paths);
// Where the commands' coordinator is: at --address, or at the socket. Errors as
// rpc::ReadTlsFiles.
absl::StatusOr<rpc::Endpoint> ResolveEndpoint(const GlobalOptions& global,
                                              const RuntimePaths& paths);
// A client of the coordinator that is up. Unavailable says how to start one.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> ConnectToCoordinator(const GlobalOptions& global,
                                                                        const RuntimePaths& paths);

// Reads the job file, the profile and the plan; NotFound names them. InvalidArgument for an
// override without '=', or what is wrong with the profile or the plan.
absl::StatusOr<v1::SubmitRequest> MakeSubmitRequest(const JobOptions& options);
// The files that such a job is read from, its data and its model's included: no output may take
// their place.
std::vector<std::string> FilesOf(const JobOptions& options, const v1::SubmitRequest& request);

// How the end of a job looks to a shell: FAILED because of bad input, found before any step was
// done, is 2; otherwise 1; every other final state 0.
int ExitCodeOfJob(const v1::Job& job);

}  // namespace harmony::client
