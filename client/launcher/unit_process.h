#pragma once

// `harmony start-process`: what systemd runs for the unit of one process.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/launcher/access_options.h"
#include "client/launcher/handover.h"
#include "client/launcher/runtime_dir.h"

namespace harmony::client {

// Asks the owner of the memory (memory_owner.h), for some seconds where it is just being started
// again, and becomes the process, of the same number. `access`: of the coordinator, whose socket
// systemd has. Returns only when that fails.
absl::Status BecomeProcess(const RuntimePaths& paths, const std::string& bin_dir,
                           const StartRequest& request, const AccessOptions& access);

// Of a process that has ended, by what systemd tells of it ($SERVICE_RESULT, $EXIT_CODE,
// $EXIT_STATUS; systemd.exec(5)): whether nobody killed it, it hung and systemd did, or the kernel
// did for want of memory.
bool DiedByItself(absl::string_view service_result, absl::string_view exit_code,
                  absl::string_view exit_status);

}  // namespace harmony::client
