// harmony-paper-planner: plans an imported profile, by the published planner's cost model or by our
// own dispatcher. `harmony plan --import-profile` becomes this program.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "coordinator/paper/judge_report.h"
#include "coordinator/paper/parallel_for.h"
#include "coordinator/paper/plan_report.h"
#include "coordinator/paper/profile_json.h"
#include "coordinator/paper/schedule_json.h"
#include "coordinator/planner/imported/imported_search.h"
#include "coordinator/planner/imported/listed_plan.h"
#include "coordinator/planner/paper/search.h"

namespace harmony::paper {
namespace {

struct Options {
  std::string cost_model = "paper", profile, schedule, mode = "vPP", memory;
  std::string swap, peer, message;  // speeds; empty: the published planner's
  int gpus = 0;
  int64_t minibatch = 0;
  uint64_t seed = 1;
  bool json = false, explain = false;
};

absl::Status ReadSpeed(const std::string& text, absl::string_view option, double* bytes_per_s) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<BytesPerSecond> speed = ParseBytesPerSecond(text);
  if (!speed.ok()) return WithContext(speed.status(), option);
  if (speed->value < limits::kLeastBytesPerSecond || speed->value > limits::kMostBytesPerSecond) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": '", text, "': must be from 1kB/s to 1e18B/s"));
  }
  *bytes_per_s = speed->value;
  return absl::OkStatus();
}

absl::StatusOr<Machine> ReadMachine(const Options& options) {
  Machine machine;
  machine.gpus = options.gpus;
  absl::StatusOr<Bytes> memory = ParseBytes(options.memory);
  if (!memory.ok()) return WithContext(memory.status(), "--memory");
  if (memory->count() > limits::kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory: must be at most ", FormatBytes(Bytes(limits::kMostBytes))));
  }
  machine.memory_bytes = memory->count();
  HARMONY_RETURN_IF_ERROR(ReadSpeed(options.swap, "--swap-bandwidth", &machine.swap_bytes_per_s));
  HARMONY_RETURN_IF_ERROR(ReadSpeed(options.peer, "--peer-bandwidth", &machine.peer_bytes_per_s));
  HARMONY_RETURN_IF_ERROR(
      ReadSpeed(options.message, "--message-bandwidth", &machine.host_message_bytes_per_s));
  HARMONY_RETURN_IF_ERROR(CheckMachine(machine));
  return machine;
}

void ForEach(int count, const std::function<void(int)>& body) {
  ParallelFor(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u)), count,
              body);
}

absl::Status FindSchedule(const LayerProfile& profile, const Options& options, PlanReport* report) {
  SearchOptions search;
  search.seed = options.seed;
  search.for_each = ForEach;
  const Nanos begin = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(SearchResult found, Search(profile, report->machine, report->mode,
                                                      report->minibatch, search));
  report->search_s = (MonotonicClock().Now() - begin).seconds();
  report->searched = true;
  report->schedule = std::move(found.schedule);
  report->lower_bound_s = found.lower_bound_s;
  report->evaluations = found.evaluations;
  report->size_pairs = found.size_pairs;
  return absl::OkStatus();
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// What both reports begin with.
template <typename Report>
absl::StatusOr<LayerProfile> ReadCase(const Options& options, Report* report) {
  HARMONY_ASSIGN_OR_RETURN(report->machine, ReadMachine(options));
  HARMONY_ASSIGN_OR_RETURN(report->mode, ParseMode(options.mode));
  // Its divisors are tried, of which 1 is one.
  if (options.minibatch < 1 || options.minibatch > limits::kMostMicrobatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--minibatch: is ", options.minibatch, "; it must lie in 1..", limits::kMostMicrobatches));
  }
  report->minibatch = options.minibatch;
  return ReadLayerProfile(options.profile);
}

// By the published planner's cost model.
absl::Status PlanByPaper(const Options& options) {
  PlanReport report;
  HARMONY_ASSIGN_OR_RETURN(const LayerProfile profile, ReadCase(options, &report));
  if (options.schedule.empty()) {
    HARMONY_RETURN_IF_ERROR_CTX(FindSchedule(profile, options, &report), options.profile);
  } else {
    HARMONY_ASSIGN_OR_RETURN(report.schedule, ReadSchedule(options.schedule));
  }
  HARMONY_RETURN_IF_ERROR_CTX(Measure(profile, &report), options.schedule);
  Print(options.json ? ToJsonText(profile, report) + "\n"
                     : ToText(profile, report, options.explain));
  return absl::OkStatus();
}

absl::Status JudgeGiven(const LayerProfile& profile, const Options& options, JudgeReport* report) {
  HARMONY_ASSIGN_OR_RETURN(const Schedule schedule, ReadSchedule(options.schedule));
  HARMONY_RETURN_IF_ERROR_CTX(
      CheckSchedule(profile, report->mode, report->machine.gpus, report->minibatch, schedule),
      options.schedule);
  absl::StatusOr<JudgedSchedule> judged =
      JudgeSchedule(profile, report->machine, report->mode, report->minibatch, schedule);
  HARMONY_RETURN_IF_ERROR_CTX(judged.status(), options.schedule);
  report->plan = std::move(judged->plan);
  report->estimate = std::move(judged->estimate);
  report->fits = judged->fits;
  return absl::OkStatus();
}

absl::Status FindPlan(const LayerProfile& profile, const Options& options, JudgeReport* report) {
  ImportedSearchOptions search;
  search.for_each = ForEach;
  const Nanos begin = MonotonicClock().Now();
  absl::StatusOr<ImportedResult> found =
      SearchImported(profile, report->machine, report->mode, report->minibatch, search);
  HARMONY_RETURN_IF_ERROR_CTX(found.status(), options.profile);
  report->search_s = (MonotonicClock().Now() - begin).seconds();
  report->searched = true;
  report->plan = std::move(found->plan);
  report->estimate = std::move(found->estimate);
  report->lower_bound_s = found->lower_bound.seconds();
  report->bounded = found->bounded;
  report->simulations = found->simulations;
  report->sizes = found->sizes;
  return absl::OkStatus();
}

// By our own: the dispatcher under the virtual clock.
absl::Status PlanByDispatcher(const Options& options) {
  JudgeReport report;
  HARMONY_ASSIGN_OR_RETURN(const LayerProfile profile, ReadCase(options, &report));
  HARMONY_RETURN_IF_ERROR(options.schedule.empty() ? FindPlan(profile, options, &report)
                                                   : JudgeGiven(profile, options, &report));
  Print(options.json ? ToJsonText(profile, report) + "\n" : ToText(profile, report));
  if (options.json || !options.explain) return absl::OkStatus();
  const int64_t samples = SamplesPerTask(report.mode, report.machine.gpus, report.minibatch);
  HARMONY_ASSIGN_OR_RETURN(
      const ImportedModel imported,
      ImportModel(profile, report.machine, static_cast<int>(report.plan.devices.size()), samples));
  Print(Explanation(imported.model, report));
  return absl::OkStatus();
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Plans an imported profile", "harmony-paper-planner");
  app.add_option("--cost-model", options.cost_model,
                 "'paper': the published planner's; 'harmony': our own dispatcher")
      ->check(CLI::IsMember({"harmony", "paper"}))
      ->capture_default_str();
  app.add_option("--import-profile", options.profile, "Profile (layer-profile/1)")->required();
  app.add_option("--gpus", options.gpus, "Number of GPUs")->required();
  app.add_option("--minibatch", options.minibatch, "Samples of one iteration")->required();
  app.add_option("--mode", options.mode, "vPP or vDP")->capture_default_str();
  app.add_option("--memory", options.memory, "Of one GPU, e.g. 10GiB")->required();
  app.add_option("--schedule", options.schedule, "Time this four-tuple instead of searching");
  app.add_option("--swap-bandwidth", options.swap, "Host link, shared by the GPUs, e.g. 11.5GiB/s");
  app.add_option("--peer-bandwidth", options.peer, "GPU to GPU, each, e.g. 8.2GiB/s");
  app.add_option("--message-bandwidth", options.message, "Host process to process, e.g. 16GiB/s");
  app.add_option("--seed", options.seed, "Of the search")->capture_default_str();
  app.add_flag("--json", options.json, "Machine-readable output");
  app.add_flag("--explain", options.explain, "Each pack, each GPU's end, the bound");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status =
      options.cost_model == "paper" ? PlanByPaper(options) : PlanByDispatcher(options);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  // Nothing has run: what does not fit is bad input.
  return absl::IsResourceExhausted(status) ? 2 : ExitCodeOf(status);
}

}  // namespace
}  // namespace harmony::paper

int main(int argc, char** argv) { return harmony::paper::Run(argc, argv); }
