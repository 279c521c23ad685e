// harmony-compare: a job's plan beside what people do today. `harmony plan --compare` becomes it.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/baselines/compare/comparison.h"
#include "bench/for_each.h"
#include "bench/plan_costs.h"
#include "common/base/status.h"
#include "common/document/json_line.h"
#include "coordinator/planner/host_memory_error.h"
#include "coordinator/service/jobs/plan_request.h"

namespace harmony::baselines {
namespace {

// Equal neighbours together: "4 x sim:mem=11GB".
std::string DevicesText(const std::vector<plan::DeviceSpec>& devices) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < devices.size(); begin = end) {
    const std::string device = plan::ToString(devices[begin]);
    while (end < devices.size() && plan::ToString(devices[end]) == device) ++end;
    absl::StrAppend(&text, begin > 0 ? "; " : "", end - begin, " x ", device);
  }
  return text;
}

// Of the plan that was made; what keeps a plan from fitting is the row's, other errors are ours.
absl::Status AddHarmony(const service::PlanRequest& request, Comparison* comparison) {
  const absl::StatusOr<service::AdmittedJob> admitted =
      service::PlanJob(request.job, request.machine, request.limits);
  if (!admitted.ok()) {
    if (!absl::IsResourceExhausted(admitted.status()) &&
        !planner::IsHostMemoryError(admitted.status())) {
      return admitted.status();
    }
    comparison->harmony = HarmonyWithoutPlan(admitted.status());
    return absl::OkStatus();
  }
  HARMONY_ASSIGN_OR_RETURN(const dispatch::CostFactory costs,
                           bench::CostsOf(request.job, *admitted, request.machine));
  HARMONY_ASSIGN_OR_RETURN(
      const planner::Estimate estimate,
      planner::EvaluatePlan(admitted->model, admitted->plan, *costs(admitted->plan)));
  comparison->harmony = HarmonyOutcome(admitted->model, admitted->plan, estimate);
  const auto plan = nlohmann::json::parse(admitted->plan_json);
  comparison->basis = plan["time_estimate"]["basis"];
  return absl::OkStatus();
}

absl::StatusOr<Comparison> Compare(const service::PlanRequest& request) {
  HARMONY_ASSIGN_OR_RETURN(service::AdmittedJob job, service::ReadJob(request.job));
  HARMONY_ASSIGN_OR_RETURN(const dispatch::CostFactory costs,
                           bench::CostsOf(request.job, job, request.machine));
  // Others move gradients in the type that layers compute in, whatever that costs in precision.
  if (job.spec.bf16) {
    model::StoreGradientsAs(job.spec.gradient_dtype.value_or(DType::kBF16), job.model);
  }
  Comparison comparison;
  comparison.model = job.spec.model_name_or_path;
  comparison.devices = DevicesText(request.machine.devices);
  comparison.batch = job.spec.global_batch_size;
  comparison.sequence_length = job.spec.sequence_length;
  const std::vector<Baseline>& baselines = AllBaselines();
  comparison.others.resize(baselines.size());
  absl::Status status;
  bench::ForEach(static_cast<int>(baselines.size()) + 1, [&](int i) {
    if (i == 0) {  // takes longest
      status = AddHarmony(request, &comparison);
      return;
    }
    const auto at = static_cast<size_t>(i) - 1;
    comparison.others[at] = Best(baselines[at], job.model, job.spec, request.machine, costs);
  });
  HARMONY_RETURN_IF_ERROR(status);
  return comparison;
}

int Run(int argc, char** argv) {
  service::PlanOptions options;
  CLI::App app("harmony-compare: a job's plan beside what people do today");
  app.add_option("--devices", options.devices, "device string, e.g. sim*4:mem=64MiB")->required();
  app.add_option("--host-memory", options.host_memory, "size of the host arena");
  service::AddPlanOptions(app, "", &options);
  app.get_option("--job")->required();
  app.add_flag("--json", options.json, "print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::StatusOr<service::PlanRequest> request = service::ReadPlanRequest(options);
  const absl::StatusOr<Comparison> comparison =
      request.ok() ? Compare(*request) : absl::StatusOr<Comparison>(request.status());
  if (!comparison.ok()) {
    const std::string text = options.json
                                 ? document::ErrorLine(comparison.status())
                                 : absl::StrCat("error: ", comparison.status().message(), "\n");
    std::fputs(text.c_str(), stderr);
    return ExitCodeOf(comparison.status());
  }
  std::printf("%s\n",
              (options.json ? ComparisonJson(*comparison) : ComparisonText(*comparison)).c_str());
  return 0;
}

}  // namespace
}  // namespace harmony::baselines

int main(int argc, char** argv) { return harmony::baselines::Run(argc, argv); }
