#include "client/launcher/services.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/machine.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

class ServiceBuilder {
 public:
  ServiceBuilder(const ServiceSettings& settings, const Memory& memory)
      : settings_(settings), memory_(memory) {}

  std::vector<Service> All() const {
    std::vector<Service> all;
    all.push_back(Make("coordinator", -1, "harmony-coordinator", "coordinator.log"));
    const std::vector<std::string> access = settings_.access.ToArguments();
    all.back().child.arguments.insert(all.back().child.arguments.end(), access.begin(),
                                      access.end());
    all.back().child.environment.emplace_back(ipc::kKeptLinesFdVariable,
                                              absl::StrCat(memory_.kept_lines.get()));
    all.back().child.inherited_fds.push_back(memory_.kept_lines.get());
    all.back().child.arguments.insert(all.back().child.arguments.end(),
                                      {"--state-dir", settings_.paths.state_dir});
    if (!settings_.jobs_since.empty()) {
      all.back().child.arguments.insert(all.back().child.arguments.end(),
                                        {"--jobs-since", settings_.jobs_since});
    }
    all.push_back(Make("swapper", -1, "harmony-swapper", "swapper.log"));
    std::vector<std::pair<int, int>> fds;  // device, descriptor
    for (const ipc::UniqueFd& fd : memory_.devices) {
      fds.emplace_back(static_cast<int>(fds.size()), fd.get());
    }
    GiveDevices(all.back(), fds);
    const auto specs = plan::ParseDevices(settings_.devices);
    all.push_back(Make("host", -1, "harmony-worker", "worker-host.log"));
    all.back().child.arguments.insert(all.back().child.arguments.end(), {"--device", "host"});
    for (size_t i = 0; i < fds.size(); ++i) {
      all.push_back(Make("worker", static_cast<int>(i), "harmony-worker",
                         absl::StrCat("worker-", i, ".log")));
      all.back().child.arguments.insert(all.back().child.arguments.end(),
                                        {"--device", absl::StrCat(i)});
      // A worker that copies sends to other devices, too.
      const bool copies = specs.ok() && i < specs->size() && (*specs)[i].worker_copies;
      GiveDevices(all.back(), copies ? fds : std::vector{fds[i]});
    }
    return all;
  }

 private:
  Service Make(const std::string& role, int device, const std::string& program,
               const std::string& log) const {
    Service service;
    service.role = role;
    service.device = device;
    service.child.program = absl::StrCat(settings_.bin_dir, "/", program);
    const std::string socket =
        role == "coordinator" ? settings_.paths.socket() : settings_.paths.attach_socket();
    service.child.arguments = {"--socket", socket, "--devices", settings_.devices};
    service.child.environment = ProcessSettings(settings_.paths.dir, memory_.segment.get());
    service.child.inherited_fds = {memory_.segment.get()};
    service.child.log_path = absl::StrCat(settings_.paths.logs(), "/", log);
    return service;
  }

  static void GiveDevices(Service& service, const std::vector<std::pair<int, int>>& fds) {
    service.child.environment.emplace_back(ipc::kDeviceFdsVariable, ipc::FormatDeviceFds(fds));
    for (const auto& [device, fd] : fds) service.child.inherited_fds.push_back(fd);
  }

  const ServiceSettings& settings_;
  const Memory& memory_;
};

}  // namespace

std::string Service::name() const { return device >= 0 ? absl::StrCat(role, " ", device) : role; }

std::vector<Service> AllServices(const ServiceSettings& settings, const Memory& memory) {
  return ServiceBuilder(settings, memory).All();
}

absl::Status CheckPrograms(const std::string& bin_dir) {
  for (const char* name : {"harmony-coordinator", "harmony-swapper", "harmony-worker"}) {
    std::string path = absl::StrCat(bin_dir, "/", name);
    if (access(path.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("no program ", path));
    }
  }
  return absl::OkStatus();
}

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

}  // namespace harmony::client
