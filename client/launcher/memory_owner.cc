#include "client/launcher/memory_owner.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/launcher/handover.h"
#include "client/launcher/memory.h"
#include "client/launcher/pidfd.h"
#include "client/launcher/services.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/ipc/service_manager.h"

namespace harmony::client {
namespace {

// Beside the memory, by these names: the text of the devices, and of each process, in the order of
// AllServices, how often it was started and how often it has died by itself.
constexpr char kDevices[] = "devices", kLives[] = "lives";
constexpr int kLookMs = 500;
constexpr timeval kAskerPatience = {1, 0};  // with one process that asks, while others wait

struct Lives {
  uint64_t starts;
  uint64_t own_deaths;
};
static_assert(sizeof(Lives) == 16, "shared with a successor");

// What the service manager keeps.
struct Kept {
  Memory memory;
  std::string devices;
  ipc::UniqueFd lives;
};

absl::StatusOr<std::string> ReadText(const ipc::UniqueFd& fd) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::MappedRegion text,
                           ipc::MappedRegion::Map(fd.get(), Bytes(), /*writable=*/false));
  return std::string(reinterpret_cast<const char*>(text.data()),
                     static_cast<size_t>(text.size().count()));
}

absl::StatusOr<ipc::UniqueFd> WriteText(const std::string& name, const std::string& text) {
  const Bytes size(static_cast<int64_t>(text.size()));
  HARMONY_ASSIGN_OR_RETURN(ipc::UniqueFd fd, ipc::CreateSealedMemory(name, size));
  HARMONY_ASSIGN_OR_RETURN(const ipc::MappedRegion map, ipc::MappedRegion::Map(fd.get()));
  std::memcpy(map.data(), text.data(), text.size());
  return fd;
}

ipc::NamedFd* FindNamed(std::vector<ipc::NamedFd>& all, const std::string& name) {
  for (ipc::NamedFd& one : all) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

absl::StatusOr<Kept> MakeKept(const MemoryOwnerOptions& options,
                              const ipc::ServiceManager& manager) {
  HARMONY_RETURN_IF_ERROR(CheckPrograms(options.bin_dir));
  HARMONY_ASSIGN_OR_RETURN(const Cluster cluster, options.cluster());
  RotateLogs(options.paths.logs());
  Kept kept;
  HARMONY_ASSIGN_OR_RETURN(kept.memory, MakeMemory(options.bin_dir, cluster));
  kept.devices = cluster.devices;
  const auto processes = static_cast<int64_t>(AllServices({}, kept.memory).size());
  HARMONY_ASSIGN_OR_RETURN(
      kept.lives, ipc::CreateSealedMemory("harmony-lives",
                                          Bytes(processes * static_cast<int64_t>(sizeof(Lives)))));
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd devices, WriteText("harmony-devices", kept.devices));
  const auto keep = [&manager](const std::string& name, int fd) { return manager.Keep(name, fd); };
  HARMONY_RETURN_IF_ERROR(ForEachDescriptor(kept.memory, keep));
  HARMONY_RETURN_IF_ERROR(keep(kLives, kept.lives.get()));
  // The last: where it is, all the others are.
  HARMONY_RETURN_IF_ERROR(keep(kDevices, devices.get()));
  return kept;
}

// What a predecessor made, or new memory where there was none, or it died before it had made all:
// then nobody has been given any.
absl::StatusOr<Kept> TakeOrMake(const MemoryOwnerOptions& options,
                                const ipc::ServiceManager& manager) {
  HARMONY_ASSIGN_OR_RETURN(std::vector<ipc::NamedFd> handed, ipc::TakeHandedFds());
  const ipc::NamedFd* const devices = FindNamed(handed, kDevices);
  if (devices == nullptr) {
    for (const ipc::NamedFd& one : handed) HARMONY_RETURN_IF_ERROR(manager.Forget(one.name));
    return MakeKept(options, manager);
  }
  Kept kept;
  HARMONY_ASSIGN_OR_RETURN(kept.devices, ReadText(devices->fd));
  if (ipc::NamedFd* const lives = FindNamed(handed, kLives)) kept.lives = std::move(lives->fd);
  HARMONY_ASSIGN_OR_RETURN(kept.memory, MemoryOf(handed));
  spdlog::info("goes on with the memory of a predecessor, for {}", kept.devices);
  return kept;
}

class MemoryOwner {
 public:
  MemoryOwner(const MemoryOwnerOptions& options, Kept kept, ipc::MappedRegion lives)
      : options_(options), kept_(std::move(kept)), lives_(std::move(lives)) {
    for (const Service& service :
         AllServices({options.paths, options.bin_dir, kept_.devices, "", {}}, kept_.memory)) {
      processes_.push_back({service.role, service.device, 0, 0, service.child.log_path});
    }
    pidfds_.resize(processes_.size());
    FindRunning();
  }

  absl::Status Run(const ipc::UniqueFd& listening, const ipc::UniqueFd& signals,
                   ipc::ServiceManager& manager) {
    Publish();
    manager.Ready();
    spdlog::info("memory for {} is on {}", kept_.devices, options_.paths.memory_socket());
    for (;;) {
      std::vector<pollfd> polled = {{signals.get(), POLLIN, 0}, {listening.get(), POLLIN, 0}};
      for (const ipc::UniqueFd& pidfd : pidfds_) polled.push_back({pidfd.get(), POLLIN, 0});
      if (poll(polled.data(), polled.size(), kLookMs) < 0 && errno != EINTR) {
        return absl::ErrnoToStatus(errno, "waiting for processes");
      }
      manager.Alive(MonotonicClock().Now());
      if (polled[0].revents != 0) return absl::OkStatus();
      for (size_t i = 0; i < pidfds_.size(); ++i) {
        if (polled[i + 2].revents != 0) OnEnd(i);
      }
      if (polled[1].revents != 0) Answer(listening);
    }
  }

 private:
  Lives& LivesOf(size_t process) const { return reinterpret_cast<Lives*>(lives_.data())[process]; }

  // Those that a predecessor has listed.
  void FindRunning() {
    const absl::StatusOr<ProcessList> list = ReadProcessList(options_.paths);
    if (!list.ok() || list->processes.size() != processes_.size()) return;
    for (size_t i = 0; i < processes_.size(); ++i) {
      const pid_t pid = list->processes[i].pid;
      if (pid == 0) continue;
      pidfds_[i] = ipc::UniqueFd(pidfd_open(pid, 0));
      if (pidfds_[i].valid()) processes_[i].pid = pid;
      processes_[i].incarnation = list->processes[i].incarnation;
    }
  }

  void OnEnd(size_t process) {
    spdlog::info("{} has ended: pid {}", NameOf(processes_[process]), processes_[process].pid);
    pidfds_[process].Reset();
    processes_[process].pid = 0;
    Publish();
  }

  void Answer(const ipc::UniqueFd& listening) {
    const ipc::UniqueFd connection(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.valid()) return;
    for (int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
      setsockopt(connection.get(), SOL_SOCKET, option, &kAskerPatience, sizeof(kAskerPatience));
    }
    if (absl::Status status = Start(connection.get()); !status.ok()) {
      spdlog::warn("refused: {}", std::string(status.message()));
      (void)SendStatus(connection.get(), status);
    }
  }

  absl::Status Start(int connection) {
    // Whoever it is: a refusal to one whose words were not read does not arrive.
    HARMONY_ASSIGN_OR_RETURN(const StartRequest request, ReceiveStartRequest(connection));
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      return absl::ErrnoToStatus(errno, "asking who asks");
    }
    if (peer.uid != geteuid()) {
      return absl::PermissionDeniedError(
          absl::StrCat("process ", peer.pid, " belongs to user ", peer.uid, ", not ", geteuid()));
    }
    const auto found =
        std::find_if(processes_.begin(), processes_.end(), [&](const ProcessEntry& one) {
          return one.role == request.role && one.device == request.device;
        });
    if (found == processes_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no ", NameOf(request.role, request.device), " with devices ", kept_.devices));
    }
    const auto index = static_cast<size_t>(found - processes_.begin());
    Lives& lives = LivesOf(index);
    if (request.died_by_itself) {
      ++lives.own_deaths;
      spdlog::warn("{} has died by itself: {} of its {} incarnations have", NameOf(*found),
                   lives.own_deaths, lives.starts);
      return SendStatus(connection, absl::OkStatus());
    }
    // It asks before it becomes the process, so the number stays its own.
    found->pid = peer.pid;
    found->incarnation = static_cast<int64_t>(lives.starts++);
    pidfds_[index] = ipc::UniqueFd(pidfd_open(peer.pid, 0));
    if (!pidfds_[index].valid()) found->pid = 0;
    spdlog::info("{} starts: pid {}, incarnation {}", NameOf(*found), peer.pid, found->incarnation);
    Publish();
    StartAnswer answer;
    answer.devices = kept_.devices;
    answer.incarnation = found->incarnation;
    answer.own_deaths = static_cast<int64_t>(lives.own_deaths);
    return SendStartAnswer(connection, answer, kept_.memory);
  }

  static std::string NameOf(const std::string& role, int device) {
    return Service{role, device, {}}.name();
  }
  static std::string NameOf(const ProcessEntry& process) {
    return NameOf(process.role, process.device);
  }

  void Publish() const {
    ProcessList list;
    list.supervisor = getpid();
    list.socket = options_.paths.socket();
    list.devices = kept_.devices;
    list.state_dir = options_.paths.state_dir;
    list.units = true;
    list.processes = processes_;
    const absl::Status written = WriteProcessList(options_.paths, list);
    if (!written.ok()) spdlog::warn("{}", std::string(written.message()));
  }

  const MemoryOwnerOptions& options_;
  const Kept kept_;
  const ipc::MappedRegion lives_;
  std::vector<ProcessEntry> processes_;  // in the order of AllServices
  std::vector<ipc::UniqueFd> pidfds_;    // of those that run
};

}  // namespace

absl::Status OwnMemory(const MemoryOwnerOptions& options) {
  sigset_t stopping;
  sigemptyset(&stopping);
  for (int signal : {SIGTERM, SIGINT}) sigaddset(&stopping, signal);
  sigprocmask(SIG_BLOCK, &stopping, nullptr);
  const ipc::UniqueFd signals(signalfd(-1, &stopping, SFD_CLOEXEC | SFD_NONBLOCK));
  signal(SIGPIPE, SIG_IGN);
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.dir));
  HARMONY_ASSIGN_OR_RETURN(const RuntimeLock lock, RuntimeLock::Acquire(options.paths));
  HARMONY_RETURN_IF_ERROR(MakeDirectories(options.paths.logs()));
  ipc::ServiceManager manager = ipc::ServiceManager::FromEnvironment();
  HARMONY_ASSIGN_OR_RETURN(Kept kept, TakeOrMake(options, manager));
  HARMONY_ASSIGN_OR_RETURN(ipc::MappedRegion lives, ipc::MappedRegion::Map(kept.lives.get()));
  HARMONY_ASSIGN_OR_RETURN(const ipc::UniqueFd listening,
                           ListenForStarts(options.paths.memory_socket()));
  MemoryOwner owner(options, std::move(kept), std::move(lives));
  const absl::Status status = owner.Run(listening, signals, manager);
  manager.Stopping();
  unlink(options.paths.memory_socket().c_str());
  return status;
}

}  // namespace harmony::client
