#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

// How much more than copies of the worker's own thread those of another process may slow products.
constexpr double kBar = 0.03;
// How much of the copies of the worker's own thread another process has to reach meanwhile.
constexpr double kCopyBar = 0.95;
constexpr uint64_t kChunk = 64 * kMiB;
constexpr uint64_t kSmallChunk = 4 * kMiB;

enum Mode { kAlone, kProcess, kThread, kProcessSmall, kPins, kModes };
const char* const kModeNames[kModes] = {"alone", "copies_of_another_process",
                                        "copies_of_own_thread", "copies_of_another_process_4_mib",
                                        "pins_of_another_process"};

struct Outcome {
  double mean_ms = 0, median_ms = 0, late_ms = 0;
  double to_device = 0, from_device = 0;
  double pins = 0;  // made and undone meanwhile
};

double WarmUp() { return 0.2; }
double Window() { return TheSettings().quick ? 0.2 : 0.5; }

// The worker measures from 0.2 s on; copies, which begin before it, from 0.1 s on.
std::string Order(const std::string& load, uint64_t chunk) {
  return Format("run %s %.3f %.3f %llu %.3f", load.c_str(), WarmUp(), Window(),
                static_cast<unsigned long long>(chunk), WarmUp() / 2);
}

void StartCopies(const Process& copier, uint64_t chunk) {
  copier.Send(
      Format("start %llu %d 0 %.3f", static_cast<unsigned long long>(chunk), kBoth, WarmUp() / 2));
}

Outcome Measure(const Process& worker, const Process* copier, const std::string& load, Mode mode) {
  if (mode == kPins) copier->Send("pin 0 0 0");
  const bool other = mode == kProcess || mode == kProcessSmall;
  if (other) StartCopies(*copier, mode == kProcess ? kChunk : kSmallChunk);
  const std::vector<double> ran =
      Numbers(worker.Ask(Order(load, mode == kThread ? kChunk : 0), "ran"), 6);
  Outcome outcome = {ran[1], ran[2], ran[3], ran[4], ran[5], 0};
  if (mode == kPins) outcome.pins = Numbers(copier->Ask("stop", "pins"), 1)[0];
  if (other) {
    const std::vector<double> rates = Numbers(copier->Ask("stop", "rates"), 2);
    outcome.to_device = rates[0];
    outcome.from_device = rates[1];
  }
  return outcome;
}

std::vector<double> Column(const std::vector<Outcome>& outcomes, double Outcome::*member) {
  std::vector<double> values;
  for (const Outcome& outcome : outcomes) values.push_back(outcome.*member);
  return values;
}

double Median(const std::vector<Outcome>& outcomes, double Outcome::*member) {
  return SpreadOf(Column(outcomes, member)).median;
}

// What a load adds to the verdicts.
struct Answer {
  double by_process = 0, by_thread = 0;  // slowdown by the copies of each, as a share
  double copies = 0;                     // of another process, by those of the own thread
};

Answer ReportLoad(const std::string& load, const std::vector<Outcome> (&found)[kModes]) {
  const auto slowdown = [&](int mode) {
    return Median(found[mode], &Outcome::mean_ms) / Median(found[kAlone], &Outcome::mean_ms) - 1;
  };
  for (int mode = 0; mode < kModes; ++mode) {
    const std::string name = load + "_" + kModeNames[mode];
    ReportSpread(name, SpreadOf(Column(found[mode], &Outcome::mean_ms)), "ms");
    ReportNumber(name + "_99th", Median(found[mode], &Outcome::late_ms), "ms");
    if (mode == kAlone) continue;
    ReportNumber(name + "_slowdown", slowdown(mode) * 100, "%");
    if (mode == kPins) {
      ReportNumber(name + "_count", Median(found[mode], &Outcome::pins), "");
      continue;
    }
    ReportSpread(name + "_down", SpreadOf(Column(found[mode], &Outcome::to_device)), "GB/s");
    ReportSpread(name + "_up", SpreadOf(Column(found[mode], &Outcome::from_device)), "GB/s");
  }
  const auto sum = [&](Mode mode) {
    return Median(found[mode], &Outcome::to_device) + Median(found[mode], &Outcome::from_device);
  };
  return {slowdown(kProcess), slowdown(kThread), sum(kProcess) / sum(kThread)};
}

void ReportIdleRates(const Process& worker, const Process& copier) {
  StartCopies(copier, kChunk);
  Nap(500000);
  const std::vector<double> process = Numbers(copier.Ask("stop", "rates"), 2);
  const std::vector<double> thread = Numbers(worker.Ask(Order("none", kChunk), "ran"), 6);
  ReportNumber("idle_copies_of_another_process_down", process[0], "GB/s");
  ReportNumber("idle_copies_of_another_process_up", process[1], "GB/s");
  ReportNumber("idle_copies_of_own_thread_down", thread[4], "GB/s");
  ReportNumber("idle_copies_of_own_thread_up", thread[5], "GB/s");
}

void ReportVerdicts(const std::map<std::string, Answer>& answers, bool products_measured) {
  std::string against;
  for (const auto& [load, answer] : answers) {
    const double beyond = (1 + answer.by_process) / (1 + answer.by_thread) - 1;
    const bool good = beyond <= kBar && answer.copies >= kCopyBar;
    if (!good) against += (against.empty() ? "" : ", ") + load;
    ReportVerdict(load, good,
                  Format("copies of another process slow it by %.2f %%, those of an own thread by "
                         "%.2f %%: %.2f %% more (bar %.0f %%), at %.3f of the thread's rate (bar "
                         "%.2f)",
                         answer.by_process * 100, answer.by_thread * 100, beyond * 100, kBar * 100,
                         answer.copies, kCopyBar));
  }
  ReportVerdict("who_should_copy", against.empty() && products_measured,
                !against.empty()    ? "a thread of the worker, because of " + against
                : products_measured ? "another process"
                                    : "not known: no product was measured");
}

}  // namespace

void RunOverlap() {
  const SharedMemory memory(kGiB);
  Process worker("worker", {std::to_string(memory.bytes())});
  memory.GiveTo(worker);
  const std::string ready = worker.Expect("ready");
  const bool blas = ready.rfind(" cublas", 0) == 0;
  ReportText("products_by", ready);
  std::vector<std::string> loads = {"memory", "arithmetic"};
  if (blas) loads.insert(loads.begin(), {"product_large", "product_small"});
  worker.Ask(Order(loads[0], 0), "ran");  // clocks rise
  for (const std::string& load : loads) {
    const Outcome outcome = Measure(worker, nullptr, load, kAlone);
    ReportNumber(load + "_without_another_context", outcome.mean_ms, "ms");
  }
  Process copier("copier", {std::to_string(memory.bytes()), "region", "shared"});
  memory.GiveTo(copier);
  copier.Expect("ready");
  ReportIdleRates(worker, copier);
  std::map<std::string, Answer> answers;
  for (const std::string& load : loads) {
    std::vector<Outcome> found[kModes];
    for (int round = 0; round < (TheSettings().quick ? 2 : 3); ++round) {
      for (int mode = 0; mode < kModes; ++mode) {
        found[mode].push_back(Measure(worker, &copier, load, static_cast<Mode>(mode)));
      }
    }
    answers[load] = ReportLoad(load, found);
  }
  ReportVerdicts(answers, blas);
  if (!blas) Fail("no product was measured: " + ready);
}

}  // namespace harmony::bench
