// harmony-coordinator: owns jobs, plans and dispatch; the only process that listens.

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/build_identity.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/document/json_line.h"
#include "common/ipc/heartbeat.h"
#include "common/ipc/segment.h"
#include "common/ipc/service_manager.h"
#include "common/rpc/address.h"
#include "common/runtime/process_environment.h"
#include "common/runtime/pulse.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/jobs/plan_request.h"
#include "coordinator/service/jobs/stored_jobs.h"
#include "coordinator/service/server.h"
#include "coordinator/service/server_lock.h"

namespace harmony::service {
namespace {

struct Options {
  ServerOptions server;
  std::string state_dir, jobs_since, log_level = "info";
  bool plan_once = false;
  std::string jobs_once, ended_before;
  int answer_fd = -1;
  PlanOptions plan;  // devices and host memory of a server, too
};

// How often deadlines are looked at. Messages do not wait for it.
constexpr std::chrono::milliseconds kTick{50};

absl::StatusOr<std::string> ResolveStateDir(const std::string& option) {
  std::string path = option;
  if (path.empty()) {
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    path = state != nullptr && *state != '\0'
               ? absl::StrCat(state, "/harmony")
               : absl::StrCat(home == nullptr ? "" : home, "/.local/state/harmony");
  }
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", path, ": ", error.message()));
  }
  return path;
}

// The supervisor's; without one, a segment of our own.
absl::StatusOr<ipc::Segment> OpenSegment(plan::MachineSpec* machine) {
  if (std::getenv(ipc::kSegmentFdVariable) == nullptr) {
    spdlog::warn("event=no_segment message=\"{} is not set: using a segment of our own\"",
                 ipc::kSegmentFdVariable);
    return ipc::Segment::Create(machine->host_memory);
  }
  HARMONY_ASSIGN_OR_RETURN(ipc::UniqueFd fd, ipc::InheritedSegmentFd());
  HARMONY_ASSIGN_OR_RETURN(ipc::Segment segment, ipc::Segment::Open(std::move(fd)));
  machine->host_memory = Bytes(static_cast<int64_t>(segment.constants().total_bytes));
  return segment;
}

absl::Status PlanOnce(const PlanOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(const PlanRequest request, ReadPlanRequest(options));
  HARMONY_ASSIGN_OR_RETURN(const AdmittedJob admitted,
                           PlanJob(request.job, request.machine, request.limits));
  const std::string& text = options.json ? admitted.plan_json : admitted.plan_text;
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!text.empty() && text.back() != '\n') std::fputc('\n', stdout);
  return absl::OkStatus();
}

// Of what --state-dir holds, which nobody serves. What fails is part of the answer.
absl::Status JobsOnce(const Options& options) {
  const auto answer = [&options](const auto& message) {
    if (!message.ok()) return WriteAnswer(options.answer_fd, message.status());
    return WriteAnswer(options.answer_fd, message->SerializeAsString());
  };
  if (options.jobs_once == "prune") {
    return answer(PruneStoredJobs(options.state_dir, options.ended_before));
  }
  return answer(ReadStoredJobs(options.state_dir, options.plan.job));
}

absl::Status Serve(const Options& options, runtime::TerminationSignals& signals) {
  HARMONY_ASSIGN_OR_RETURN(const runtime::ProcessEnvironment environment,
                           runtime::ReadProcessEnvironment());
  HARMONY_RETURN_IF_ERROR(runtime::DieWithParent(environment.parent_pid));
  HARMONY_ASSIGN_OR_RETURN(ipc::Heartbeat heartbeat, ipc::Heartbeat::Inherited());
  const bool supervised = heartbeat.watched();
  ServerOptions served = options.server;
  HARMONY_ASSIGN_OR_RETURN(served.socket_path, rpc::ResolveSocketPath(served.socket_path));
  const std::string& socket = served.socket_path;
  HARMONY_ASSIGN_OR_RETURN(plan::MachineSpec machine,
                           ResolveMachine(options.plan.devices, options.plan.host_memory));
  HARMONY_RETURN_IF_ERROR(rpc::MakeSocketFolder(socket));
  HARMONY_ASSIGN_OR_RETURN(ipc::UniqueFd handed, ipc::TakeHandedSocket(socket));
  HARMONY_ASSIGN_OR_RETURN(const ServerLock lock, ServerLock::Acquire(socket, !handed.valid()));
  HARMONY_ASSIGN_OR_RETURN(const std::string state_dir, ResolveStateDir(options.state_dir));
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<store::JobStore> store,
                           store::JobStore::Open(state_dir));
  HARMONY_ASSIGN_OR_RETURN(JobRegistry registry, JobRegistry::Open(std::move(store)));
  HARMONY_ASSIGN_OR_RETURN(ipc::Segment segment, OpenSegment(&machine));
  served.is_successor = segment.generation() > 0;
  Mailbox mailbox;
  Coordinator coordinator(machine, &segment, std::move(registry), &mailbox, MonotonicClock(),
                          options.jobs_since);
  HARMONY_ASSIGN_OR_RETURN(
      std::unique_ptr<CoordinatorServer> server,
      CoordinatorServer::Start(served, std::move(handed), &coordinator, &mailbox));
  spdlog::info("event=listening socket={} address=\"{}\" devices=\"{}\" state_dir={} pid={}",
               socket, server->address(), options.plan.devices, state_dir, getpid());
  mailbox.Post([&] { coordinator.Begin(); });
  // A loop that does not come round is taken to hang, and who watches replaces this process; it
  // writes to disks, which may stall for longer than a process may be silent.
  runtime::Pulse pulse(std::move(heartbeat), runtime::Pulse::kLongestWork,
                       ipc::ServiceManager::FromEnvironment());
  pulse.BeginWork();
  pulse.Ready();
  std::thread loop([&] {
    mailbox.Run(kTick, [&] {
      pulse.BeginWork();
      coordinator.OnTick();
    });
  });
  const int signal = signals.Wait();
  spdlog::info("event=stopping signal={}", signal);
  pulse.Stopping();
  mailbox.Post([&] { coordinator.Terminate([&] { signals.RequestStop(); }); });
  // Done, or told to hurry. A launcher does that with SIGKILL; its SIGTERM may come after one that
  // the whole group of processes got, as when a machine or a batch system ends.
  while (signals.Wait() != 0 && supervised) {
  }
  mailbox.Close();  // nobody waits for an answer any more
  server.reset();
  loop.join();
  return absl::OkStatus();
}

void AddServerOptions(CLI::App& app, ServerOptions& server) {
  app.add_option("--socket", server.socket_path, "Unix-domain socket to listen on");
  app.add_option("--socket-group", server.socket_group, "group that may open the socket, too");
  app.add_option("--listen", server.listen, "HOST:PORT to serve on with TLS, too");
  app.add_option("--tls-cert", server.tls.certificate, "certificate of the server (PEM)");
  app.add_option("--tls-key", server.tls.key, "its key");
  app.add_option("--tls-client-ca", server.tls.ca, "who signs certificates of clients");
  app.add_option("--allow", server.allow, "user:, group: or cert:NAME=read|change")
      ->allow_extra_args(false);
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("harmony-coordinator: owns jobs, plans and dispatch");
  app.set_version_flag("--version", absl::StrCat("harmony-coordinator ", BuildIdentity()));
  AddServerOptions(app, options.server);
  app.add_option("--state-dir", options.state_dir, "where the job database is kept");
  app.add_option("--jobs-since", options.jobs_since,
                 "leave jobs alone that were submitted before (RFC 3339, UTC)");
  app.add_option("--devices", options.plan.devices, "device string, e.g. sim*4:mem=64MiB");
  app.add_option("--host-memory", options.plan.host_memory,
                 "size of the host arena (no inherited segment)");
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, err");
  app.add_flag("--plan-once", options.plan_once, "print the plan of --job and exit");
  app.add_option("--jobs-once", options.jobs_once,
                 "answer once what --state-dir holds and exit; --job: of this job")
      ->check(CLI::IsMember({"read", "prune"}));
  app.add_option("--ended-before", options.ended_before, "which jobs, for --jobs-once prune");
  app.add_option("--answer-fd", options.answer_fd, "where to write the answer of --jobs-once");
  AddPlanOptions(app, ", for --plan-once", &options.plan);
  app.add_flag("--explain", options.plan.explain, "all there is to say, for --plan-once");
  app.add_flag("--json", options.plan.json, "print the plan as JSON");
  try {
    app.parse(argc, argv);
    if (options.plan.devices.empty() && options.jobs_once.empty()) {
      throw CLI::RequiredError("--devices");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("coordinator"));
  spdlog::set_pattern(absl::StrCat("time=", kLogTime, " level=%l process=coordinator %v"),
                      spdlog::pattern_time_type::utc);
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  absl::Status status;
  if (!options.jobs_once.empty()) {
    status = JobsOnce(options);
  } else if (options.plan_once) {
    status = PlanOnce(options.plan);
    if (!status.ok()) {
      const std::string text = options.plan.json ? document::ErrorLine(status)
                                                 : absl::StrCat("error: ", status.message(), "\n");
      std::fputs(text.c_str(), stderr);
    }
    // Nothing has run yet: what does not fit is bad input.
    if (absl::IsResourceExhausted(status)) return 2;
  } else {
    runtime::TerminationSignals signals;
    status = Serve(options, signals);
    if (!status.ok()) spdlog::error("event=failed reason=\"{}\"", std::string(status.message()));
  }
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace harmony::service

int main(int argc, char** argv) { return harmony::service::Run(argc, argv); }
