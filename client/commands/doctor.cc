#include "client/commands/doctor.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/launcher/cluster.h"
#include "client/launcher/device_memory.h"
#include "client/launcher/runtime_dir.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/io/free_space.h"
#include "common/ipc/host_memory.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLittleMemory = GiB(2), kLittleDisk = GiB(5), kTooLittleDisk = MiB(64);
constexpr int64_t kFewFiles = 1024;
constexpr int kOldestMajor = 5, kOldestMinor = 14;  // MADV_POPULATE_WRITE

// ---- What is found good or bad ----

Finding Good(std::string what, std::string found) {
  return {Verdict::kGood, std::move(what), std::move(found), ""};
}
Finding Note(std::string what, std::string found, std::string advice) {
  return {Verdict::kNote, std::move(what), std::move(found), std::move(advice)};
}
Finding Problem(std::string what, std::string found, std::string advice) {
  return {Verdict::kProblem, std::move(what), std::move(found), std::move(advice)};
}

Finding OfPrograms(const MachineFacts& facts) {
  std::vector<std::string> missing, others;
  for (const MachineFacts::Program& program : facts.programs) {
    if (!program.runs) {
      missing.push_back(program.path);
    } else if (program.version != facts.version) {
      others.push_back(absl::StrCat(program.path, " is ", program.version));
    }
  }
  const std::string own = absl::StrCat("harmony ", facts.version);
  if (!missing.empty()) {
    return Problem("programs", absl::StrCat(absl::StrJoin(missing, ", "), " cannot be run"),
                   "build or install all of them into one folder, or name it by --bin-dir");
  }
  if (!others.empty()) {
    return Problem("programs", absl::StrCat(own, ", but ", absl::StrJoin(others, ", ")),
                   "build or install all of them anew: versions do not mix");
  }
  return Good("programs", own);
}

Finding OfKernel(const MachineFacts& facts) {
  const std::string found = absl::StrCat("Linux ", facts.kernel_major, ".", facts.kernel_minor);
  if (std::pair(facts.kernel_major, facts.kernel_minor) < std::pair(kOldestMajor, kOldestMinor)) {
    return Note(
        "kernel", found,
        absl::StrCat("from Linux ", kOldestMajor, ".", kOldestMinor,
                     " on memory is made ready before the first step, which is slower here"));
  }
  return Good("kernel", found);
}

Finding OfCores(const MachineFacts& facts) {
  std::string found = absl::StrCat(facts.cores, facts.cores == 1 ? " core, " : " cores, ",
                                   facts.avx512 ? "AVX-512"
                                   : facts.avx2 ? "AVX2"
                                                : "no AVX2");
  if (facts.core_quota > 0 && facts.core_quota < facts.cores) {
    return Note(
        "processor",
        absl::StrFormat("%s; the control group allows %.1f of them", found, facts.core_quota),
        "raise the quota (cpu.max): threads that are held back in turns wait for each other");
  }
  if (!facts.avx2) {
    return Note("processor", found, "emulated devices and updates are several times slower so");
  }
  return Good("processor", found);
}

Finding OfMemory(const MachineFacts& facts) {
  const std::string found =
      absl::StrCat(FormatBytes(facts.available), " of ", FormatBytes(facts.total), " available");
  if (facts.available < kLittleMemory) {
    return Note("memory", found, "end other programs, or raise the limit of the control group");
  }
  if (facts.swap_used > MiB(256)) {
    return Note("memory", absl::StrCat(found, ", ", FormatBytes(facts.swap_used), " swapped out"),
                "memory that is swapped to disk makes steps slow: end other programs");
  }
  return Good("memory", found);
}

Finding OfHugePages(const MachineFacts& facts) {
  if (facts.huge_pages == "never" || facts.huge_pages.empty()) {
    return Note("huge pages", facts.huge_pages.empty() ? "not known" : facts.huge_pages,
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): emulated "
                "devices compute faster in huge pages");
  }
  return Good("huge pages", facts.huge_pages);
}

Finding OfOpenFiles(const MachineFacts& facts) {
  const std::string found = absl::StrCat(facts.open_files, " open files");
  if (facts.open_files >= kFewFiles) return Good("limits", found);
  return Note("limits", found,
              facts.open_files_most >= kFewFiles
                  ? absl::StrCat("ulimit -n ", kFewFiles, ": many data files may need more")
                  : "raise nofile in /etc/security/limits.conf: many data files may need more");
}

// Only what GPUs copy from has to be locked.
Finding OfLockedMemory(const MachineFacts& facts) {
  const bool all = facts.locked_memory >= facts.total;
  const std::string found = all ? "any amount" : FormatBytes(facts.locked_memory);
  if (all || facts.gpus.empty()) return Good("locked memory", found);
  return Note("locked memory", found,
              "ulimit -l unlimited, or memlock in /etc/security/limits.conf: memory that cannot be "
              "locked is copied to GPUs more slowly");
}

Finding OfPriority(const MachineFacts& facts) {
  if (facts.real_time_priority > 0) return Good("real-time priority", "allowed");
  return Note("real-time priority", "not allowed",
              "only paced emulated devices use it, to keep their pace beside other work: rtprio 2 "
              "in /etc/security/limits.conf, or CAP_SYS_NICE");
}

Finding OfDisk(const MachineFacts::Disk& disk) {
  const std::string what = absl::StrCat("disk, ", disk.what);
  const std::string found = absl::StrCat(disk.folder, ": ", FormatBytes(disk.free), " free");
  if (!disk.writable) {
    return Problem(what, absl::StrCat(disk.folder, " cannot be written"),
                   "give another one (--state-dir, --runtime-dir), or its rights");
  }
  if (disk.free < kTooLittleDisk) return Problem(what, found, "make room");
  if (disk.free < kLittleDisk) return Note(what, found, "checkpoints lie in output_dir, not here");
  return Good(what, found);
}

Finding OfProcesses(const MachineFacts& facts) {
  if (facts.supervisor != 0) {
    return Good("processes", absl::StrCat("up, supervised by process ", facts.supervisor));
  }
  if (facts.stale_files) {
    return Note("processes", "none, but files of a supervisor that is gone",
                "harmony doctor --clean removes them; the next `harmony up` does as well");
  }
  return Good("processes", "none is up");
}

Finding OfDeadRuns(const MachineFacts& facts) {
  if (facts.dead_runs.empty()) return Good("leftovers", "none");
  return Note("leftovers", absl::StrCat("of dead runs: ", absl::StrJoin(facts.dead_runs, ", ")),
              "harmony doctor --clean removes them; the next `harmony run` does as well");
}

Finding OfGpus(const MachineFacts& facts) {
  if (facts.gpus.empty()) {
    return Good("GPUs", facts.gpu_driver.empty()
                            ? "none, and no driver: devices are emulated (sim)"
                            : absl::StrCat("none, though there is the driver ", facts.gpu_driver));
  }
  const std::string driver = facts.gpu_driver.empty() ? "" : "; driver " + facts.gpu_driver;
  if (!facts.gpu_problem.empty()) {
    return Note("GPUs", absl::StrJoin(facts.gpus, ", ") + driver,
                absl::StrCat("none can be used, devices are emulated (sim): ", facts.gpu_problem));
  }
  return Good("GPUs",
              absl::StrJoin(facts.gpus, ", ") + driver + "; used where no other devices are named");
}

// ---- What is looked at ----

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void LookAtProcessor(MachineFacts& facts) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) facts.cores = CPU_COUNT(&cores);
  // cgroup v2 seen from within: "max 100000" or "150000 100000", of a period.
  const std::vector<std::string> quota =
      absl::StrSplit(FirstLine("/sys/fs/cgroup/cpu.max"), ' ', absl::SkipEmpty());
  double most = 0, period = 0;
  if (quota.size() == 2 && absl::SimpleAtod(quota[0], &most) &&
      absl::SimpleAtod(quota[1], &period) && period > 0) {
    facts.core_quota = most / period;
  }
#if defined(__x86_64__)
  facts.avx2 = __builtin_cpu_supports("avx2") > 0;
  facts.avx512 = __builtin_cpu_supports("avx512f") > 0;
#endif
}

void LookAtSystem(MachineFacts& facts) {
  facts.available = ipc::AvailableHostMemory();
  facts.total = ipc::SystemMemory("MemTotal");
  facts.swap_used = ipc::SystemMemory("SwapTotal") - ipc::SystemMemory("SwapFree");
  // "always [madvise] never": the one in brackets.
  const std::string modes = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('['), close = modes.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    facts.huge_pages = modes.substr(open + 1, close - open - 1);
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.open_files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
    facts.open_files_most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_max, INT64_MAX));
  }
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.locked_memory = Bytes(static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX)));
  }
  if (getrlimit(RLIMIT_RTPRIO, &limit) == 0) {
    facts.real_time_priority = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 99));
  }
  // Whoever has the capability needs no limit; only trying shows it.
  const sched_param lowest{.sched_priority = 1};
  if (facts.real_time_priority == 0 && sched_setscheduler(0, SCHED_RR, &lowest) == 0) {
    const sched_param ordinary{.sched_priority = 0};
    sched_setscheduler(0, SCHED_OTHER, &ordinary);
    facts.real_time_priority = 1;
  }
  utsname name;
  if (uname(&name) == 0) {
    std::sscanf(name.release, "%d.%d", &facts.kernel_major, &facts.kernel_minor);
  }
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
  const std::vector<std::string> driver =
      absl::StrSplit(FirstLine("/proc/driver/nvidia/version"), ' ', absl::SkipEmpty());
  for (const std::string& word : driver) {
    if (facts.gpu_driver.empty() && absl::ascii_isdigit(static_cast<unsigned char>(word[0]))) {
      facts.gpu_driver = word;
    }
  }
  std::error_code error;
  for (const fs::directory_entry& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    const std::string model = FirstLine(gpu.path() / "information");
    const size_t colon = model.find(':');
    facts.gpus.push_back(colon == std::string::npos
                             ? gpu.path().filename().string()
                             : std::string(absl::StripAsciiWhitespace(model.substr(colon + 1))));
  }
}

// What `program --version` prints, without the program's name.
std::string VersionOf(const std::string& program) {
  const std::string quoted = absl::StrReplaceAll(program, {{"'", "'\\''"}});
  FILE* const output = popen(absl::StrCat("'", quoted, "' --version 2>/dev/null").c_str(), "r");
  if (output == nullptr) return "";
  char line[256] = "";
  if (std::fgets(line, sizeof(line), output) == nullptr) line[0] = '\0';
  pclose(output);
  const std::vector<std::string> words =
      absl::StrSplit(absl::StripAsciiWhitespace(line), ' ', absl::SkipEmpty());
  return words.empty() ? "" : words.back();
}

void LookAtPrograms(const GlobalOptions& global, MachineFacts& facts) {
  constexpr absl::string_view kCuda = "harmony-cuda";  // only where it was built
  for (const char* name :
       {"harmony-coordinator", "harmony-worker", "harmony-swapper", kCuda.data()}) {
    MachineFacts::Program program{ProgramPath(global, name)};
    program.runs = access(program.path.c_str(), X_OK) == 0;
    if (!program.runs && kCuda == name) continue;
    if (program.runs) program.version = VersionOf(program.path);
    facts.programs.push_back(std::move(program));
  }
}

using Gpus = absl::StatusOr<std::vector<plan::Gpu>>;

// A container may have GPUs, and nothing of them in /proc.
void TakeGpus(const Gpus& gpus, MachineFacts& facts) {
  facts.gpu_problem = WhyNone(gpus);
  if (!gpus.ok() || !facts.gpus.empty()) return;
  for (const plan::Gpu& gpu : *gpus) facts.gpus.push_back(gpu.name);
}

MachineFacts::Disk DiskOf(std::string what, const std::string& folder) {
  const io::FreeSpace free = io::FreeSpaceAt(folder).value_or(io::FreeSpace{folder, Bytes()});
  const bool writable = access(free.folder.c_str(), W_OK | X_OK) == 0;
  return {std::move(what), free.folder, free.bytes, writable};
}

std::vector<Finding> OfCluster(const Gpus& gpus, const ClusterOptions& options,
                               const MachineFacts& facts) {
  const absl::StatusOr<Cluster> cluster =
      ResolveCluster(options.config, options.devices, options.host_memory, facts.available,
                     [&gpus] { return gpus; });
  if (!cluster.ok()) {
    return {Problem("devices", std::string(cluster.status().message()), "change what is given")};
  }
  if (cluster->specs.front().kind == plan::DeviceKind::kCuda) {
    const absl::Status fits = gpus.ok() ? plan::CheckGpus(cluster->specs, *gpus) : gpus.status();
    if (!fits.ok()) return {Problem("devices", std::string(fits.message()), "")};
  }
  Bytes devices, emulated;
  for (const plan::DeviceSpec& device : cluster->specs) {
    devices += device.memory;
    if (device.kind == plan::DeviceKind::kSim) emulated += device.memory;
  }
  const std::string found =
      absl::StrCat(cluster->devices, ", ", FormatBytes(devices),
                   " together, and a host segment of up to ", FormatBytes(cluster->host_memory));
  std::vector<Finding> findings;
  if (emulated + cluster->host_memory > facts.available) {
    findings.push_back(Note("devices", found,
                            "that is more than is available: jobs that need all of it are "
                            "refused when they are submitted"));
  } else {
    findings.push_back(Good("devices", found));
  }
  if (emulated > Bytes() && std::ssize(cluster->specs) > facts.cores) {
    findings.push_back(
        Note("cores",
             absl::StrCat(cluster->specs.size(), " emulated devices on ", facts.cores, " cores"),
             "they take turns, which plans take into account: fewer are as fast"));
  }
  return findings;
}

const char* ToString(Verdict verdict) {
  static constexpr const char* kNames[] = {"good", "note", "problem"};
  return kNames[static_cast<int>(verdict)];
}

void Print(const GlobalOptions& global, const std::vector<Finding>& findings) {
  if (global.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      json.push_back({{"what", finding.what},
                      {"verdict", ToString(finding.verdict)},
                      {"found", finding.found},
                      {"advice", finding.advice}});
    }
    return PrintJson(json);
  }
  for (const Finding& finding : findings) {
    const char* const sign = finding.verdict == Verdict::kGood   ? "ok"
                             : finding.verdict == Verdict::kNote ? "note"
                                                                 : "PROBLEM";
    printf("%-7s  %s: %s\n", sign, finding.what.c_str(), finding.found.c_str());
    if (!finding.advice.empty()) printf("         %s\n", finding.advice.c_str());
  }
}

}  // namespace

std::vector<Finding> Examine(const MachineFacts& facts) {
  std::vector<Finding> findings = {OfPrograms(facts),     OfKernel(facts),    OfCores(facts),
                                   OfMemory(facts),       OfHugePages(facts), OfOpenFiles(facts),
                                   OfLockedMemory(facts), OfPriority(facts)};
  for (const MachineFacts::Disk& disk : facts.disks) findings.push_back(OfDisk(disk));
  findings.push_back(OfProcesses(facts));
  findings.push_back(OfDeadRuns(facts));
  findings.push_back(OfGpus(facts));
  return findings;
}

int DoctorCommand(const GlobalOptions& global, const DoctorOptions& options) {
  const absl::StatusOr<RuntimePaths> paths =
      ResolveRuntimePaths(global.runtime_dir, global.state_dir);
  if (!paths.ok()) return Fail(paths.status());
  if (options.clean) {
    RemoveDeadRuns();
    // Where a supervisor lives, nothing is stale.
    if (RuntimeLockHolder(*paths) == 0) {
      const absl::Status removed = RemoveStaleFiles(*paths);
      if (!removed.ok()) fprintf(stderr, "%s\n", std::string(removed.message()).c_str());
    }
  }
  MachineFacts facts;
  facts.version = BuildIdentity();
  LookAtProcessor(facts);
  LookAtSystem(facts);
  LookAtPrograms(global, facts);
  const Gpus gpus = FindGpus(BinDir(global));
  TakeGpus(gpus, facts);
  facts.disks = {DiskOf("job database and logs", paths->state_dir), DiskOf("sockets", paths->dir)};
  facts.supervisor = RuntimeLockHolder(*paths);
  std::error_code unseen;  // of a folder of others, which the disk's line names
  facts.stale_files = facts.supervisor == 0 && fs::exists(paths->processes(), unseen);
  facts.dead_runs = DeadRuns();
  std::vector<Finding> findings = Examine(facts);
  if (options.cluster.given()) {
    absl::c_move(OfCluster(gpus, options.cluster, facts), std::back_inserter(findings));
  }
  Print(global, findings);
  const bool bad = absl::c_any_of(
      findings, [](const Finding& finding) { return finding.verdict == Verdict::kProblem; });
  return bad ? 1 : 0;
}

}  // namespace harmony::client
