#pragma once

// Whether this machine and this user are ready to train, and what to do where not.

#include <string>
#include <vector>

#include "client/commands/common.h"
#include "common/base/units.h"

namespace harmony::client {

// What a machine and a user have, as far as it matters.
struct MachineFacts {
  struct Program {
    std::string path = {};
    bool runs = false;         // it is there and may be executed
    std::string version = {};  // what it says of itself
  };
  struct Disk {
    std::string what, folder;  // "job database and logs"; the nearest folder that there is
    Bytes free = {};
    bool writable = true;
  };
  int cores = 0;          // that this process may use
  double core_quota = 0;  // of its control group; 0: none
  bool avx2 = false, avx512 = false;
  Bytes available, total;  // memory
  Bytes swap_used;
  std::string huge_pages;                       // "madvise"
  int64_t open_files = 0, open_files_most = 0;  // soft and hard limit
  Bytes locked_memory;                          // that may be; GPUs' copies need it
  int64_t real_time_priority = 0;               // the highest that is allowed
  int kernel_major = 0, kernel_minor = 0;
  std::string version;  // of this program
  std::vector<Program> programs;
  std::vector<Disk> disks;
  int64_t supervisor = 0;              // that runs now; 0: none
  bool stale_files = false;            // of one that is gone
  std::vector<std::string> dead_runs;  // folders that runs left which could not clean up
  std::vector<std::string> gpus;       // as the driver names them
  std::string gpu_problem;             // why none of them can be used
  std::string gpu_driver;              // its version; empty: none is loaded
};

enum class Verdict { kGood, kNote, kProblem };

struct Finding {
  Verdict verdict = Verdict::kGood;
  std::string what, found;
  std::string advice;  // empty where nothing is to be done
};

// PURE.
std::vector<Finding> Examine(const MachineFacts& facts);

struct DoctorOptions {
  ClusterOptions cluster;  // whether this machine has what these devices take
  bool clean = false;      // removes what dead runs left
};
// Exit code 1 when something would keep training from starting.
int DoctorCommand(const GlobalOptions& global, const DoctorOptions& options);

}  // namespace harmony::client
