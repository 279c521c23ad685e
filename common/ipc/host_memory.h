#pragma once

// How much memory this process may still take, so that a need can be refused by name and number
// before anything is allocated.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/units.h"

namespace harmony::ipc {

// The smallest of what the system has available (/proc/meminfo, MemAvailable) and what the control
// groups of this process (v1 and v2, all parents) leave, reclaimable file pages counted as free.
// `root` is put in front of /proc and /sys, for tests.
Bytes AvailableHostMemory(const std::string& root = "");

// A line of /proc/meminfo, such as "MemTotal"; zero where there is none of that name.
Bytes SystemMemory(absl::string_view key);

// Processes of this machine, of whatever user and control group, that the kernel has killed for
// want of memory since it was started. Nothing before Linux 4.13, which does not say.
std::optional<int64_t> OomKills(const std::string& root = "");

}  // namespace harmony::ipc
