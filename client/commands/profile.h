#pragma once

#include "client/commands/common.h"

namespace harmony::client {

struct ProfileOptions {
  JobOptions job;
  ClusterOptions cluster;
  std::string output;
  bool quick = false;  // one microbatch size, few repeats
  bool again = false;  // measure even if there is a cached profile
};
// Measures the job's layers on the devices, the links and the host, and writes a profile; or takes
// it from the cache ($XDG_CACHE_HOME/harmony/profiles, else ~/.cache/...), where the same model,
// devices, settings and versions were measured before.
int ProfileCommand(const GlobalOptions& global, const ProfileOptions& options);

}  // namespace harmony::client
