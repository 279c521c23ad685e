#include "coordinator/service/run/prepare_run.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/job_file.h"
#include "common/model/architecture.h"
#include "common/plan/arena_layout.h"
#include "common/profile/plausible.h"
#include "common/profile/profile_json.h"
#include "common/rpc/command_codec.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/service/replan/replan.h"

namespace harmony::service {
namespace {

// The job's text in the segment: where the run began, as every process is told.
std::string EncodeStart(const StartPoint& start) {
  return nlohmann::json{{"checkpoint", start.checkpoint}, {"first_step", start.first_step}}.dump();
}

bool DecodeStart(const std::string& text, StartPoint* start) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("checkpoint") || !json.contains("first_step"))
    return false;
  start->checkpoint = json["checkpoint"].get<std::string>();
  start->first_step = json["first_step"].get<int64_t>();
  return true;
}

ipc::SegmentJob AllocationOf(const store::JobRecord& record, const RunSetup& setup) {
  const plan::ArenaLayout layout(setup.model, setup.plan);
  ipc::SegmentJob allocation;
  allocation.id = record.id();
  allocation.digest = SegmentDigestOf(record);
  allocation.record_count =
      command::ObjectTableLayout(setup.model, setup.plan.num_microbatches, setup.plan.replicas)
          .size();
  allocation.cursor_count = ipc::CursorCount(setup.model);
  allocation.extent = layout.end();
  allocation.persistent = layout.persistent_bytes();
  return allocation;
}

// Where the machine's speeds are known, or were measured.
std::optional<Forecast> ForecastOf(const RunSetup& setup, const plan::MachineSpec& machine) {
  if (setup.profile == nullptr && !plan::AllSpeedsGiven(machine.devices)) return std::nullopt;
  const std::unique_ptr<const dispatch::CostModel> costs = dispatch::MakeCosts(
      setup.profile.get(), setup.replan.scales, setup.model, setup.plan, machine.devices);
  absl::StatusOr<Forecast> forecast =
      MakeForecast(setup.model, setup.plan, *costs, setup.spec.compute_threads);
  if (forecast.ok()) return *std::move(forecast);
  spdlog::warn("event=no_forecast job={} reason=\"{}\"", setup.id, forecast.status().ToString());
  return std::nullopt;
}

// Where the job that the segment holds began; nothing when it holds another, or none.
std::optional<StartPoint> HeldStart(const ipc::Segment& segment, const store::JobRecord& record) {
  const absl::StatusOr<ipc::SegmentJob> found = segment.ReadJob();
  StartPoint start;
  if (!found.ok() || found->id != record.id() || found->digest != SegmentDigestOf(record) ||
      !DecodeStart(found->text, &start)) {
    return std::nullopt;
  }
  return start;
}

}  // namespace

uint64_t SegmentDigestOf(const store::JobRecord& record, absl::string_view build) {
  const std::string text = absl::StrCat(build, "\n", record.id(), "\n", record.submitted_at, "\n",
                                        record.output_dir, "\n", record.result_keys, "\n",
                                        XXH3_64bits(record.plan.data(), record.plan.size()));
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<RunSetup> SetupOf(const store::JobRecord& record, const plan::MachineSpec& machine) {
  RunSetup setup;
  setup.id = record.id();
  HARMONY_ASSIGN_OR_RETURN(setup.spec, job::JobSpecFromJson(record.job_json, record.id()));
  setup.config_json = record.config_json;
  HARMONY_ASSIGN_OR_RETURN(const model::Architecture architecture,
                           model::ParseArchitecture(record.config_json, "model"));
  setup.plan_bytes = record.plan;
  HARMONY_ASSIGN_OR_RETURN(setup.plan, rpc::ParsePlan(record.plan));
  HARMONY_ASSIGN_OR_RETURN(
      setup.model, plan::ModelOn(machine, architecture, setup.spec, setup.plan.gradient_dtype));
  HARMONY_ASSIGN_OR_RETURN(setup.replan,
                           ReplanStateFromText(record.replan, record.id() + ": replan"));
  if (!record.profile.empty()) {
    HARMONY_ASSIGN_OR_RETURN(profile::Profile profile,
                             profile::ParseProfile(record.profile, record.id() + ": profile"));
    setup.profile =
        std::make_shared<const profile::Profile>(profile::Plausible(std::move(profile)));
  }
  return setup;
}

bool HoldsJob(const ipc::Segment& segment, const store::JobRecord& record) {
  return HeldStart(segment, record).has_value();
}

bool HoldsAnotherJob(const ipc::Segment& segment, const store::JobRecord& record) {
  return !absl::IsNotFound(segment.ReadJob().status()) && !HoldsJob(segment, record);
}

absl::Status PrepareRun(const store::JobRecord& record, const plan::MachineSpec& machine,
                        ipc::Segment* segment, RunSetup* setup) {
  setup->forecast = ForecastOf(*setup, machine);
  ipc::SegmentJob allocation = AllocationOf(record, *setup);
  if (setup->forecast) setup->forecast->host = segment->MemoryWith(allocation);
  if (const std::optional<StartPoint> start = HeldStart(*segment, record)) {
    setup->start = *start;
    setup->continues = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<ipc::SegmentJob> held = segment->ReadJob();
  if (held.ok() && held->id == record.id()) {
    spdlog::warn(
        "event=segment_not_continued job={} reason=\"it was laid out by another build of "
        "the programs, or for another submission or plan\"",
        record.id());
  }
  if (!absl::IsNotFound(held.status())) HARMONY_RETURN_IF_ERROR(segment->ReleaseJob());
  HARMONY_ASSIGN_OR_RETURN(setup->start, ChooseStartPoint(setup->spec, record.result_keys,
                                                          /*begun=*/record.completed_steps > 0));
  HARMONY_RETURN_IF_ERROR(SetLaterCheckpointsAside(record.output_dir, &setup->start));
  allocation.text = EncodeStart(setup->start);
  return segment->AllocateJob(allocation);
}

}  // namespace harmony::service
