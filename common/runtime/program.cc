#include "common/runtime/program.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "common/base/build_identity.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/address.h"

namespace harmony::runtime {
namespace {

struct Flags {
  std::string socket, devices, device, profile, log_level = "info";
};

void SetUpLog(const std::string& name, const Flags& flags, uint32_t incarnation) {
  std::string who = name;
  if (!flags.device.empty()) absl::StrAppend(&who, "-", flags.device);
  auto logger = spdlog::stderr_color_mt(who);
  logger->set_pattern(absl::StrCat(kLogTime, " %l %n[%P.", incarnation, "] %v"),
                      spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::from_str(flags.log_level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

absl::Status RunBody(
    const ProgramDefinition& definition, const Flags& flags, TerminationSignals& signals,
    const std::function<absl::Status(ProgramContext&, TerminationSignals&)>& body) {
  HARMONY_ASSIGN_OR_RETURN(const ProcessEnvironment environment, ReadProcessEnvironment());
  SetUpLog(definition.name, flags, environment.incarnation);
  HARMONY_RETURN_IF_ERROR(DieWithParent(environment.parent_pid));
  HARMONY_ASSIGN_OR_RETURN(ipc::Heartbeat heartbeat, ipc::Heartbeat::Inherited());
  auto pulse = std::make_unique<Pulse>(std::move(heartbeat), Pulse::kLongestWork,
                                       ipc::ServiceManager::FromEnvironment());
  if (flags.profile.empty()) pulse->BeginWork();  // measuring takes as long as it takes
  HARMONY_ASSIGN_OR_RETURN(std::string socket, rpc::ResolveSocketPath(flags.socket));
  HARMONY_ASSIGN_OR_RETURN(std::vector<plan::DeviceSpec> devices,
                           plan::ParseDevices(flags.devices));
  HARMONY_ASSIGN_OR_RETURN(ipc::UniqueFd segment_fd, ipc::InheritedSegmentFd());
  HARMONY_ASSIGN_OR_RETURN(ipc::Segment segment, ipc::Segment::Open(std::move(segment_fd)));
  std::vector<ipc::DeviceFd> device_fds;
  if (std::getenv(ipc::kDeviceFdsVariable) != nullptr) {
    HARMONY_ASSIGN_OR_RETURN(device_fds, ipc::InheritedDeviceFds());
  }
  ProgramContext context{std::move(socket), std::move(devices), flags.device,
                         environment,       std::move(segment), std::move(device_fds),
                         flags.profile,     std::move(pulse)};
  // Paced work sleeps to deadlines; the default slack of 50 us would be added to each.
  prctl(PR_SET_TIMERSLACK, 1000);
  return body(context, signals);
}

}  // namespace

absl::StatusOr<int> ProgramContext::DeviceDescriptor(int device) const {
  for (const ipc::DeviceFd& inherited : device_fds) {
    if (inherited.device == device) return inherited.fd.get();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the memory of device ", device, " is not in ", ipc::kDeviceFdsVariable));
}

absl::StatusOr<ipc::MappedRegion> ProgramContext::MapDevice(int device) const {
  HARMONY_ASSIGN_OR_RETURN(const int fd, DeviceDescriptor(device));
  const Bytes memory = devices[static_cast<size_t>(device)].memory;
  HARMONY_ASSIGN_OR_RETURN(ipc::MappedRegion region, ipc::MappedRegion::Map(fd));
  if (region.size() == memory) return region;
  return absl::FailedPreconditionError(absl::StrCat("the memory of device ", device, " has ",
                                                    FormatBytesExact(region.size()),
                                                    ", --devices says ", FormatBytesExact(memory)));
}

AttachedOptions ProgramContext::attached_options() const {
  AttachedOptions options;
  options.socket_path = socket_path;
  options.num_devices = static_cast<int>(devices.size());
  options.incarnation = environment.incarnation;
  options.own_deaths = environment.own_deaths;
  options.pulse = pulse.get();
  return options;
}

int RunProgram(int argc, char** argv, const ProgramDefinition& definition,
               const std::function<absl::Status(ProgramContext&, TerminationSignals&)>& body) {
  TerminationSignals signals;
  Flags flags;
  CLI::App app("Started by 'harmony up', 'harmony run' or systemd; not meant to be called by hand.",
               definition.name);
  app.set_version_flag("--version", absl::StrCat(definition.name, " ", BuildIdentity()));
  app.add_option("--socket", flags.socket, "Socket of the coordinator");
  app.add_option("--devices", flags.devices, "Devices of the machine")->required();
  if (definition.has_device) {
    app.add_option("--device", flags.device, "Number of the device, or 'host'")->required();
  }
  app.add_option("--profile", flags.profile, "Measure what this file asks for, and end");
  app.add_option("--log-level", flags.log_level, "Least severity that is logged")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = RunBody(definition, flags, signals, body);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return ExitCodeOf(status);
}

absl::Status EndIfDeviceIsLost(absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  spdlog::critical("ends, to be started anew: {}", status.ToString());
  spdlog::default_logger()->flush();
  _exit(1);
}

absl::Status ServeUntilStopped(const AttachedOptions& options, std::vector<LaneDefinition> lanes,
                               LaneSemaphores* semaphores, AttachedHandler* handler,
                               TerminationSignals& signals) {
  Mutex mutex;
  absl::Status refused;  // mutex
  AttachedProcess process(options, std::move(lanes), semaphores, handler,
                          [&](const absl::Status& status) {
                            {
                              MutexLock lock(mutex);
                              refused = status;
                            }
                            signals.RequestStop();
                          });
  process.Start();
  if (options.pulse != nullptr) options.pulse->Ready();
  const int signal = signals.Wait();
  if (signal != 0) spdlog::info("signal {}: finishing what runs", signal);
  process.Stop();
  MutexLock lock(mutex);
  return WithContext(refused, "refused by the coordinator");
}

}  // namespace harmony::runtime
