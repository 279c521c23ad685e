#include <memory>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr double kBar = 0.95;

// One program that copies, by the memory that it uses.
struct Program {
  const char* name;
  const char* device;
  const char* pinned;
  std::unique_ptr<Process> process;
};

// Of one chunk size and direction.
struct Found {
  std::vector<double> to_device, from_device, both;
};

Program Start(const char* name, const char* device, const char* pinned,
              const SharedMemory& memory) {
  Program program = {name, device, pinned, nullptr};
  program.process = std::make_unique<Process>(
      "copier", Arguments{std::to_string(memory.bytes()), device, pinned});
  memory.GiveTo(*program.process);
  program.process->Expect("ready");
  return program;
}

const char* NameOf(Directions directions) {
  return directions == kToDevice ? "to_device" : directions == kFromDevice ? "from_device" : "both";
}

// The programs take turns, so that what drifts meets all of them. Returns the median sum of each.
std::vector<double> Compare(std::vector<Program>& programs, uint64_t chunk, Directions directions) {
  const bool quick = TheSettings().quick;
  std::vector<Found> found(programs.size());
  for (int round = 0; round < (quick ? 1 : 3); ++round) {
    for (size_t i = 0; i < programs.size(); ++i) {
      const std::string order = Format("copy %llu %d %.3f", static_cast<unsigned long long>(chunk),
                                       directions, quick ? 0.06 : 0.12);
      const std::vector<double> rates = Numbers(programs[i].process->Ask(order, "rates"), 2);
      found[i].to_device.push_back(rates[0]);
      found[i].from_device.push_back(rates[1]);
      found[i].both.push_back(rates[0] + rates[1]);
    }
  }
  std::vector<double> medians;
  for (size_t i = 0; i < programs.size(); ++i) {
    const std::string name =
        Format("%s_%llu_mib_%s", programs[i].name, static_cast<unsigned long long>(chunk / kMiB),
               NameOf(directions));
    if (directions != kFromDevice) {
      ReportSpread(name + (directions == kBoth ? "_down" : ""), SpreadOf(found[i].to_device),
                   "GB/s");
    }
    if (directions != kToDevice) {
      ReportSpread(name + (directions == kBoth ? "_up" : ""), SpreadOf(found[i].from_device),
                   "GB/s");
    }
    medians.push_back(SpreadOf(found[i].both).median);
  }
  return medians;
}

void ReportLatencies(const Process& process) {
  const int count = TheSettings().quick ? 200 : 2000;
  const char* kWaitings[] = {"polling", "polling_with_naps_of_20_us", "blocking"};
  for (const Directions direction : {kToDevice, kFromDevice}) {
    for (int waiting = 0; waiting < 3; ++waiting) {
      const std::string answer =
          process.Ask(Format("latency %d %d %d", direction, waiting, count), "latency ");
      if (answer == "lacking") continue;
      const std::vector<double> us = Numbers(answer, 4);
      const std::string name =
          std::string("small_copy_") + NameOf(direction) + "_" + kWaitings[waiting];
      ReportNumber(name + "_enqueue", us[0], "us");
      ReportNumber(name + "_known_median", us[1], "us");
      ReportNumber(name + "_known_tenth", us[2], "us");
      ReportNumber(name + "_known_99th", us[3], "us");
    }
  }
}

}  // namespace

void RunCopies() {
  // This process makes no context: the programs are alone with the device.
  const SharedMemory memory(kGiB);
  std::vector<Program> programs;
  programs.push_back(Start("swapper", "region", "shared", memory));
  if (Cuda().MemAlloc != nullptr && Cuda().MemHostAlloc != nullptr) {
    programs.push_back(Start("plain", "plain", "plain", memory));
    // Tells which of the two sorts of memory a difference is due to.
    programs.push_back(Start("plain_device_shared_host", "plain", "shared", memory));
  }
  ReportLatencies(*programs[0].process);
  double worst = 1e9;
  for (const uint64_t mib : {1, 4, 16, 64, 256}) {
    for (const Directions directions : {kToDevice, kFromDevice, kBoth}) {
      const std::vector<double> rates = Compare(programs, mib * kMiB, directions);
      if (rates.size() < 2) continue;
      // No rate at all, of either, is no good answer.
      const double ratio = rates[0] > 0 && rates[1] > 0 ? rates[0] / rates[1] : 0;
      ReportNumber(Format("swapper_by_plain_%d_mib_%s", static_cast<int>(mib), NameOf(directions)),
                   ratio, "");
      // Harmony copies layers, not single MiBs.
      if (mib >= 16 && ratio < worst) worst = ratio;
    }
  }
  if (programs.size() < 2) {
    ReportText("verdict", "this driver has no plain memory to compare with");
    return;
  }
  ReportVerdict("copies_of_a_swapper", worst >= kBar,
                Format("at least %.3f of the plain two-stream program from 16 MiB on, the bar is "
                       "%.2f",
                       worst, kBar));
}

}  // namespace harmony::bench
