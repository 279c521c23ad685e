// published_planner: plans a profile of the published planner, by its cost model or by our own
// dispatcher and planner. A laboratory: see README.md.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/for_each.h"
#include "bench/published_planner/files/profile_json.h"
#include "bench/published_planner/files/schedule_json.h"
#include "bench/published_planner/ours/listed_plan.h"
#include "bench/published_planner/ours/profile_plan.h"
#include "bench/published_planner/report.h"
#include "bench/published_planner/search/search.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace harmony::published {
namespace {

struct Options {
  std::string cost_model = "published", profile, schedule, mode = "vPP", memory;
  std::string swap, peer, message;  // speeds; empty: the published planner's
  int gpus = 0;
  int64_t minibatch = 0;
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

absl::StatusOr<Case> ReadCase(const Options& options) {
  Case result;
  HARMONY_ASSIGN_OR_RETURN(result.machine, ReadMachine(options));
  HARMONY_ASSIGN_OR_RETURN(result.mode, ParseMode(options.mode));
  // Its divisors are tried, of which 1 is one.
  if (options.minibatch < 1 || options.minibatch > limits::kMostMicrobatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--minibatch: is ", options.minibatch, "; it must lie in 1..", limits::kMostMicrobatches));
  }
  result.minibatch = options.minibatch;
  HARMONY_ASSIGN_OR_RETURN(result.profile, ReadLayerProfile(options.profile));
  return result;
}

absl::StatusOr<std::string> SearchByPublished(const Case& of) {
  SearchOptions search;
  search.for_each = bench::ForEach;
  const Nanos begin = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(const SearchResult found,
                           Search(of.profile, of.machine, of.mode, of.minibatch, search));
  const SearchFigures figures{(MonotonicClock().Now() - begin).seconds(), found.lower_bound_s,
                              found.evaluations, found.size_pairs};
  return PublishedReport(of, found.schedule, &figures);
}

absl::StatusOr<std::string> SearchByOurs(const Case& of) {
  const Nanos begin = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(const planner::PlanResult found,
                           PlanProfile(of.profile, of.machine, of.mode, of.minibatch));
  const SearchFigures figures{(MonotonicClock().Now() - begin).seconds(),
                              found.report.lower_bound.seconds(), found.report.bounded, 1};
  return OwnReport(of, found.plan, found.estimate, /*fits=*/true, &figures);
}

absl::StatusOr<std::string> Judge(const Case& of, const Schedule& schedule, bool by_published) {
  if (by_published) return PublishedReport(of, schedule, nullptr);
  HARMONY_RETURN_IF_ERROR(
      CheckSchedule(of.profile, of.mode, of.machine.gpus, of.minibatch, schedule));
  HARMONY_ASSIGN_OR_RETURN(const JudgedSchedule judged,
                           JudgeSchedule(of.profile, of.machine, of.mode, of.minibatch, schedule));
  return OwnReport(of, judged.plan, judged.estimate, judged.fits, nullptr);
}

absl::StatusOr<std::string> Report(const Options& options) {
  HARMONY_ASSIGN_OR_RETURN(const Case of, ReadCase(options));
  const bool by_published = options.cost_model == "published";
  if (options.schedule.empty()) {
    absl::StatusOr<std::string> text = by_published ? SearchByPublished(of) : SearchByOurs(of);
    return text.ok() ? text : WithContext(text.status(), options.profile);
  }
  HARMONY_ASSIGN_OR_RETURN(const Schedule schedule, ReadSchedule(options.schedule));
  absl::StatusOr<std::string> text = Judge(of, schedule, by_published);
  return text.ok() ? text : WithContext(text.status(), options.schedule);
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Plans a profile of the published planner", "published_planner");
  app.add_option("profile", options.profile, "Profile (layer-profile/1)")->required();
  app.add_option(
         "--cost-model", options.cost_model,
         "'published': that planner's, with a search of ours; 'harmony': our own dispatcher "
         "and planner")
      ->check(CLI::IsMember({"published", "harmony"}))
      ->capture_default_str();
  app.add_option("--gpus", options.gpus, "Number of GPUs")->required();
  app.add_option("--minibatch", options.minibatch, "Samples of one iteration")->required();
  app.add_option("--mode", options.mode, "vPP or vDP")->capture_default_str();
  app.add_option("--memory", options.memory, "Of one GPU, e.g. 10GiB")->required();
  app.add_option("--schedule", options.schedule, "Time this four-tuple instead of searching");
  app.add_option("--swap-bandwidth", options.swap, "Host link, shared by the GPUs, e.g. 11.5GiB/s");
  app.add_option("--peer-bandwidth", options.peer, "GPU to GPU, each, e.g. 8.2GiB/s");
  app.add_option("--message-bandwidth", options.message, "Host process to process, e.g. 16GiB/s");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::StatusOr<std::string> report = Report(options);
  if (report.ok()) {
    std::printf("%s\n", report->c_str());
    return 0;
  }
  std::fprintf(stderr, "error: %s\n", std::string(report.status().message()).c_str());
  // Nothing has run: what does not fit is bad input.
  return absl::IsResourceExhausted(report.status()) ? 2 : ExitCodeOf(report.status());
}

}  // namespace
}  // namespace harmony::published

int main(int argc, char** argv) { return harmony::published::Run(argc, argv); }
