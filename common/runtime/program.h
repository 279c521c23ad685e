#pragma once

// What the mains of harmony-swapper and harmony-worker have in common: flags, environment, log,
// signals, exit code.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/segment.h"
#include "common/plan/machine.h"
#include "common/runtime/attached_process.h"
#include "common/runtime/process_environment.h"
#include "common/runtime/pulse.h"

namespace harmony::runtime {

// What a program has once its flags and its inheritance have been read.
struct ProgramContext {
  std::string socket_path;
  std::vector<plan::DeviceSpec> devices;  // of the machine
  std::string device;                     // --device, when the program has it
  ProcessEnvironment environment;
  ipc::Segment segment;
  std::vector<ipc::DeviceFd> device_fds;
  // --profile: a file with a ProfileRequest. The program measures, answers and ends; it does not
  // attach.
  std::string profile_request;
  // Of what runs, whatever it is; its first work is the program's start. Never null.
  std::unique_ptr<Pulse> pulse;

  // What holds the memory of a device. FailedPrecondition when it was not inherited.
  absl::StatusOr<int> DeviceDescriptor(int device) const;
  // That of a sim device, mapped.
  absl::StatusOr<ipc::MappedRegion> MapDevice(int device) const;
  // Options of the attach stream, but for role and device.
  AttachedOptions attached_options() const;
};

struct ProgramDefinition {
  std::string name;         // "harmony-swapper"
  bool has_device = false;  // takes --device
};

// Runs `body` with signals blocked and returns what main is to return. Call it first in main:
// no other thread may exist yet.
int RunProgram(int argc, char** argv, const ProgramDefinition& definition,
               const std::function<absl::Status(ProgramContext&, TerminationSignals&)>& body);

// What a command or a set-up came to. A device that is lost to this process (Unavailable) stays so
// until the process is started anew: then it ends here, which the launcher takes for a death.
absl::Status EndIfDeviceIsLost(absl::Status status);

// Attaches, serves until a termination signal comes, and lets running commands finish. An error
// when the coordinator refused this process.
absl::Status ServeUntilStopped(const AttachedOptions& options, std::vector<LaneDefinition> lanes,
                               LaneSemaphores* semaphores, AttachedHandler* handler,
                               TerminationSignals& signals);

}  // namespace harmony::runtime
