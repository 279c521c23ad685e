// harmony-swapper: moves all data between the host arena and the devices.

#include <spdlog/spdlog.h>

#include <atomic>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/command/lane_kinds.h"
#include "common/rpc/wire_fields.h"
#include "common/runtime/program.h"
#include "common/runtime/segment_semaphores.h"
#include "harmony/v1/attach.pb.h"
#include "swapper/memory/host_arena.h"
#include "swapper/profile/link_profiler.h"
#include "swapper/service/copiers.h"
#include "swapper/service/gpu_readings.h"
#include "swapper/transfer/copy_engine.h"

namespace harmony::swapper {
namespace {

class SwapperHandler : public runtime::AttachedHandler {
 public:
  SwapperHandler(HostArena* arena, CopyEngine* engine, GpuReader read_gpus)
      : arena_(arena), engine_(engine), read_gpus_(std::move(read_gpus)) {}

  // Transfers carry all they need; the arena's extent is read anew for each generation.
  absl::Status SetUpJob(const runtime::AttachedJob& job) override {
    has_job_ = true;
    return runtime::EndIfDeviceIsLost(engine_->BeginJob(job.plan));
  }
  void EndJob() override {
    has_job_ = false;
    LogTraffic();
    if (absl::Status ended = runtime::EndIfDeviceIsLost(engine_->EndJob()); !ended.ok()) {
      spdlog::error("{}", ended.ToString());
    }
  }
  absl::Status PrepareGeneration() override {
    LogTraffic();
    return arena_->Refresh();
  }

  void Observe() override {
    std::vector<v1::GpuReadings> read;
    if (has_job_) read = read_gpus_();
    MutexLock lock(mutex_);
    gpus_ = std::move(read);
  }
  void FillStats(v1::DeviceStats* stats) override {
    runtime::FillProcessStats(stats);
    stats->set_paced(static_cast<int64_t>(engine_->paced_transfers()));
    stats->set_overruns(static_cast<int64_t>(engine_->overruns()));
    for (const TrafficCounters::Row& row : engine_->counters().Snapshot()) {
      v1::Traffic* traffic = stats->add_traffic();
      traffic->set_device(row.device);
      traffic->set_direction(rpc::ToWire<v1::LinkDirection>(row.direction));
      traffic->set_traffic(rpc::ToWire<v1::TrafficClass>(row.traffic));
      traffic->set_bytes(row.bytes.count());
      traffic->set_transfers(row.transfers);
    }
    MutexLock lock(mutex_);
    for (const v1::GpuReadings& gpu : gpus_) *stats->add_gpus() = gpu;
  }

 private:
  void LogTraffic() const {
    spdlog::info("moved so far: {}", engine_->counters().DebugString());
    if (engine_->paced_transfers() > 0) {
      spdlog::info("{} of {} paced transfers took longer than modelled", engine_->overruns(),
                   engine_->paced_transfers());
    }
  }

  HostArena* const arena_;
  CopyEngine* const engine_;
  const GpuReader read_gpus_;
  std::atomic<bool> has_job_ = false;
  Mutex mutex_;
  std::vector<v1::GpuReadings> gpus_ ABSL_GUARDED_BY(mutex_);  // as last read
};

absl::Status Serve(runtime::ProgramContext& context, runtime::TerminationSignals& signals) {
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<Copier> copier, OpenCopier(context));
  HostArena arena(&context.segment);
  CopyEngine engine(&arena, context.devices, std::move(copier));
  if (!context.profile_request.empty()) {
    HARMONY_RETURN_IF_ERROR(engine.BeginJob(plan::Plan()));
    return AnswerLinkProfile(context.profile_request, context.devices, engine);
  }
  SwapperHandler handler(&arena, &engine, OpenGpuReader(context));
  runtime::SegmentSemaphores semaphores(&context.segment);

  const int num_devices = static_cast<int>(context.devices.size());
  const command::LaneTable table(num_devices);
  std::vector<runtime::LaneDefinition> lanes;
  for (int device = 0; device < num_devices; ++device) {
    command::ForEachLaneKindOf(command::LaneOwner::kSwapper, [&](command::LaneKind kind) {
      const command::Lane lane{kind, device};
      lanes.push_back({static_cast<uint32_t>(table.IndexOf(lane)), DebugString(lane),
                       [&engine](const command::Command& command, const auto&) {
                         return runtime::EndIfDeviceIsLost(engine.Run(command));
                       }});
    });
  }
  runtime::AttachedOptions options = context.attached_options();
  options.role = runtime::AttachedRole::kSwapper;
  return runtime::ServeUntilStopped(options, std::move(lanes), &semaphores, &handler, signals);
}

}  // namespace
}  // namespace harmony::swapper

int main(int argc, char** argv) {
  return harmony::runtime::RunProgram(argc, argv, {.name = "harmony-swapper"},
                                      harmony::swapper::Serve);
}
