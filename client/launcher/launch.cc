#include "client/launcher/launch.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/launcher/device_memory.h"
#include "client/launcher/service_manager.h"
#include "client/launcher/supervisor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/document/status_line.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/heartbeat.h"
#include "common/ipc/segment.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostHangSeconds = 1'000'000;

struct Memory {
  ipc::Segment segment;
  std::vector<ipc::UniqueFd> devices;
  ipc::UniqueFd kept_lines;  // outlives the coordinators that write it
};

absl::StatusOr<Memory> MakeAllMemory(const LaunchOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(ipc::Segment segment, ipc::Segment::Create(options.cluster.host_memory));
  Memory memory{
      std::move(segment), {}, ipc::UniqueFd(memfd_create("harmony-kept-lines", MFD_CLOEXEC))};
  if (!memory.kept_lines.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  HARMONY_ASSIGN_OR_RETURN(memory.devices,
                           MakeDeviceRegions(options.bin_dir, options.cluster.specs));
  return memory;
}

class ServiceBuilder {
 public:
  ServiceBuilder(const LaunchOptions& options, const Memory& memory)
      : options_(options), memory_(memory) {}

  std::vector<Service> All() const {
    std::vector<Service> all;
    all.push_back(Make("coordinator", -1, "harmony-coordinator", "coordinator.log"));
    all.back().child.environment.emplace_back(ipc::kKeptLinesFdVariable,
                                              absl::StrCat(memory_.kept_lines.get()));
    all.back().child.inherited_fds.push_back(memory_.kept_lines.get());
    all.back().child.arguments.insert(all.back().child.arguments.end(),
                                      {"--state-dir", options_.paths.state_dir});
    if (!options_.jobs_since.empty()) {
      all.back().child.arguments.insert(all.back().child.arguments.end(),
                                        {"--jobs-since", options_.jobs_since});
    }
    all.push_back(Make("swapper", -1, "harmony-swapper", "swapper.log"));
    std::vector<std::pair<int, int>> fds;  // device, descriptor
    for (const ipc::UniqueFd& fd : memory_.devices) {
      fds.emplace_back(static_cast<int>(fds.size()), fd.get());
    }
    GiveDevices(all.back(), fds);
    all.push_back(Make("host", -1, "harmony-worker", "worker-host.log"));
    all.back().child.arguments.insert(all.back().child.arguments.end(), {"--device", "host"});
    for (size_t i = 0; i < fds.size(); ++i) {
      all.push_back(Make("worker", static_cast<int>(i), "harmony-worker",
                         absl::StrCat("worker-", i, ".log")));
      all.back().child.arguments.insert(all.back().child.arguments.end(),
                                        {"--device", absl::StrCat(i)});
      GiveDevices(all.back(), {fds[i]});
    }
    return all;
  }

 private:
  Service Make(const std::string& role, int device, const std::string& program,
               const std::string& log) const {
    Service service;
    service.role = role;
    service.device = device;
    service.child.program = absl::StrCat(options_.bin_dir, "/", program);
    service.child.arguments = {"--socket", options_.paths.socket(), "--devices",
                               options_.cluster.devices};
    service.child.environment = ProcessSettings(options_.paths.dir, memory_.segment.fd());
    service.child.inherited_fds = {memory_.segment.fd()};
    service.child.log_path = absl::StrCat(options_.paths.logs(), "/", log);
    return service;
  }

  static void GiveDevices(Service& service, const std::vector<std::pair<int, int>>& fds) {
    service.child.environment.emplace_back(ipc::kDeviceFdsVariable, ipc::FormatDeviceFds(fds));
    for (const auto& [device, fd] : fds) service.child.inherited_fds.push_back(fd);
  }

  const LaunchOptions& options_;
  const Memory& memory_;
};

absl::Status CheckPrograms(const std::string& bin_dir) {
  for (const char* name : {"harmony-coordinator", "harmony-swapper", "harmony-worker"}) {
    std::string path = absl::StrCat(bin_dir, "/", name);
    if (access(path.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("no program ", path));
    }
  }
  return absl::OkStatus();
}

// The logs of the run before become *.1.
void RotateLogs(const std::string& dir) {
  std::error_code error;
  std::vector<fs::path> logs;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".log" && entry.path().filename() != "supervisor.log") {
      logs.push_back(entry.path());
    }
  }
  for (const fs::path& log : logs) fs::rename(log, log.string() + ".1", error);
}

// For who looks at a process with a debugger, and for tests.
absl::StatusOr<Nanos> HangLimit() {
  const char* const text = std::getenv(kHangSecondsVariable);
  if (text == nullptr) return HeartbeatWatch::kDefaultLimit;
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(text, &seconds) || seconds < 0 || seconds > kMostHangSeconds) {
    return absl::InvalidArgumentError(absl::StrCat(kHangSecondsVariable, ": '", text,
                                                   "' is not a number of seconds from 0 to ",
                                                   kMostHangSeconds));
  }
  return Seconds(seconds);
}

void Report(int fd, const absl::Status& status) {
  if (fd < 0) return;
  std::string line = document::EncodeStatus(status);
  ssize_t ignored = write(fd, line.data(), line.size());
  (void)ignored;
  close(fd);
}

absl::Status Supervise(const LaunchOptions& options, bool& reported) {
  HARMONY_RETURN_IF_ERROR(CheckPrograms(options.bin_dir));
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.dir));
  HARMONY_ASSIGN_OR_RETURN(RuntimeLock lock, RuntimeLock::Acquire(options.paths));
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.logs()));
  RemoveRuntimeFiles(options.paths);
  RotateLogs(options.paths.logs());
  HARMONY_ASSIGN_OR_RETURN(Memory memory, MakeAllMemory(options));

  SupervisorOptions supervised;
  supervised.paths = options.paths;
  supervised.devices = options.cluster.devices;
  supervised.keep_up = !options.private_dir;  // others may have jobs here
  supervised.services = ServiceBuilder(options, memory).All();
  HARMONY_ASSIGN_OR_RETURN(
      ipc::HeartbeatTable heartbeats,
      ipc::HeartbeatTable::Create(static_cast<int>(supervised.services.size())));
  supervised.heartbeats = &heartbeats;
  HARMONY_ASSIGN_OR_RETURN(supervised.hang_limit, HangLimit());
  ServiceManager manager = ServiceManager::FromEnvironment();
  supervised.on_turn = [&manager](bool stopping) {
    manager.Alive(MonotonicClock().Now());
    if (stopping) manager.Stopping();
  };
  supervised.on_ready = [&options, &reported, &manager] {
    manager.Ready();
    Report(options.report_fd, absl::OkStatus());
    reported = true;
    spdlog::info("harmony is up on {}", options.paths.socket());
  };
  Supervisor supervisor(std::move(supervised));
  absl::Status status = supervisor.Run();
  if (options.private_dir && supervisor.orphaned()) {
    std::error_code error;
    fs::remove_all(options.paths.dir, error);
  }
  return status;
}

}  // namespace

absl::Status LaunchAndSupervise(const LaunchOptions& options) {
  bool reported = false;
  absl::Status status = Supervise(options, reported);
  if (!reported) {
    Report(options.report_fd,
           status.ok() ? absl::CancelledError("stopped before it was ready") : status);
  }
  return status;
}

// OpenMP must not spin, since several processes share the cores; freed
// memory stays with the process, since mapping it again costs page faults at every task.
std::vector<std::pair<std::string, std::string>> ProcessSettings(const std::string& runtime_dir,
                                                                 int segment_fd) {
  return {
      {ipc::kSegmentFdVariable, absl::StrCat(segment_fd)},
      {"HARMONY_RUNTIME_DIR", runtime_dir},
      {"OMP_WAIT_POLICY", "passive"},
      {"OMP_DYNAMIC", "false"},
      {"OMP_PROC_BIND", "false"},
      {"MALLOC_MMAP_THRESHOLD_", "33554432"},  // the most that glibc takes
      {"MALLOC_TRIM_THRESHOLD_", "1099511627776"},
      {"MALLOC_TOP_PAD_", "16777216"},
  };
}

std::string OwnBinDir() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace harmony::client
