#include "client/commands/units.h"

#include <sysexits.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/launcher/handover.h"
#include "client/launcher/memory_owner.h"
#include "client/launcher/unit_process.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

absl::Status Own(const GlobalOptions& global, const ClusterOptions& options) {
  MemoryOwnerOptions owner;
  HARMONY_ASSIGN_OR_RETURN(owner.paths, ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  owner.bin_dir = BinDir(global);
  owner.cluster = [&] { return ResolveClusterHere(global, options); };
  LogToStderr("memory");
  return OwnMemory(owner);
}

absl::Status StartProcess(const GlobalOptions& global, const StartProcessOptions& options) {
  if (options.role != "coordinator" && !options.access.ToArguments().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.access.ToArguments().front(),
                     ": is about the coordinator, and this is the unit of ", options.role));
  }
  HARMONY_ASSIGN_OR_RETURN(const RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  return BecomeProcess(paths, BinDir(global), {options.role, options.device}, options.access);
}

absl::string_view OfSystemd(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status TellEnd(const GlobalOptions& global, const StartProcessOptions& options) {
  if (!DiedByItself(OfSystemd("SERVICE_RESULT"), OfSystemd("EXIT_CODE"),
                    OfSystemd("EXIT_STATUS"))) {
    return absl::OkStatus();
  }
  HARMONY_ASSIGN_OR_RETURN(const RuntimePaths paths,
                           ResolveRuntimePaths(global.runtime_dir, global.state_dir));
  return ReportOwnDeath(paths.memory_socket(), {options.role, options.device});
}

}  // namespace

int OwnMemoryCommand(const GlobalOptions& global, const ClusterOptions& options) {
  const absl::Status status = Own(global, options);
  return status.ok() ? 0 : Fail(status);
}

int StartProcessCommand(const GlobalOptions& global, const StartProcessOptions& options) {
  const absl::Status status =
      options.ended ? TellEnd(global, options) : StartProcess(global, options);
  if (status.ok()) return 0;
  Fail(status);
  // systemd starts the unit again, but for what stays wrong until somebody mends it.
  const bool stays = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
                     absl::IsNotFound(status) || absl::IsPermissionDenied(status);
  return stays ? EX_CONFIG : EXIT_FAILURE;
}

}  // namespace harmony::client
