#include "client/commands/up.h"

#include <fcntl.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "client/commands/supervisor_process.h"
#include "client/launcher/launch.h"
#include "common/base/status.h"
#include "common/ipc/host_memory.h"

namespace harmony::client {
namespace {

// A coordinator has another current folder.
AccessOptions AbsolutePaths(AccessOptions access) {
  for (std::string* path : {&access.tls_certificate, &access.tls_key, &access.tls_client_ca}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
  }
  return access;
}

absl::Status Detach(const SupervisorProcessOptions& options) {
  // It would only find out after it has lost our terminal.
  if (pid_t holder = RuntimeLockHolder(options.paths); holder != 0) {
    return RuntimeLock::Acquire(options.paths).status();
  }
  HARMONY_ASSIGN_OR_RETURN(SupervisorProcess process, SupervisorProcess::Start(options));
  absl::Status report = process.TakeReport();
  if (!report.ok()) process.Wait();
  return report;
}

// Another process asks the coordinator, for this one waits for nobody.
void SayWhatEndingLoses(const LaunchOptions& launch) {
  spdlog::warn("once more to stop at once, without a checkpoint");
  std::string program = OwnBinDir() + "/harmony", folder = launch.paths.dir;
  std::string names[] = {"--runtime-dir", "down", "--say-losses"};
  char* const arguments[] = {program.data(),  names[0].data(), folder.data(),
                             names[1].data(), names[2].data(), nullptr};
  pid_t ignored;
  (void)posix_spawn(&ignored, program.c_str(), nullptr, nullptr, arguments, environ);
}

// Simulated devices take memory only as it is used, so that they are no mistake yet.
void NoteDevicesBeyondMemory(const Cluster& cluster) {
  Bytes devices;
  for (const plan::DeviceSpec& spec : cluster.specs) {
    if (spec.kind == plan::DeviceKind::kSim) devices += spec.memory;
  }
  const Bytes available = ipc::AvailableHostMemory();
  if (devices <= available) return;
  fprintf(stderr,
          "note: the devices have %s together, and this machine has %s for them: jobs that take "
          "more are refused\n",
          FormatBytes(devices).c_str(), FormatBytes(available).c_str());
}

absl::Status Up(const GlobalOptions& global, const UpOptions& options) {
  LaunchOptions launch;
  HARMONY_ASSIGN_OR_RETURN(launch.paths, ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  launch.bin_dir = BinDir(global);
  launch.access = AbsolutePaths(options.access);
  HARMONY_ASSIGN_OR_RETURN(launch.cluster, ResolveClusterHere(global, options.cluster));
  if (options.report_fd < 0) NoteDevicesBeyondMemory(launch.cluster);
  if (options.report_fd < 0 && !global.json) {
    printf("devices %s, host memory %s\n",
           launch.cluster.default_devices
               ? ("(none were named) " + DescribeDefault(launch.cluster)).c_str()
               : launch.cluster.devices.c_str(),
           FormatBytes(launch.cluster.host_memory).c_str());
    fflush(stdout);
  }
  if (options.detach) {
    HARMONY_RETURN_IF_ERROR(
        Detach({launch.paths, launch.bin_dir, launch.cluster, launch.access, false}));
    if (global.json) {
      PrintJson({{"socket", launch.paths.socket()},
                 {"devices", launch.cluster.devices},
                 {"host_memory", launch.cluster.host_memory.count()}});
    } else {
      printf("up: `harmony submit JOB` gives it a job, `harmony down` ends it\n");
    }
    return absl::OkStatus();
  }

  LogToStderr("launcher");
  launch.report_fd = options.report_fd;
  // Our own children must not hold it: who waits for the report waits for its end.
  if (launch.report_fd >= 0) fcntl(launch.report_fd, F_SETFD, FD_CLOEXEC);
  launch.private_use = options.private_use;
  launch.remove_dir = options.remove_dir;
  launch.jobs_since = options.jobs_since;
  if (options.report_fd < 0) {
    launch.on_second_signal = [&] { SayWhatEndingLoses(launch); };
  }
  return LaunchAndSupervise(launch);
}

}  // namespace

int UpCommand(const GlobalOptions& global, const UpOptions& options) {
  absl::Status status = Up(global, options);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace harmony::client
