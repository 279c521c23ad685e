#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/runtime/segment_semaphores.h"
#include "harmony/v1/attach.pb.h"
#include "swapper/copies/copy_service.h"
#include "worker/service/device_backends.h"
#include "worker/service/device_worker.h"
#include "worker/service/serve.h"

namespace harmony::worker {
namespace {

class DeviceHandler : public runtime::AttachedHandler {
 public:
  DeviceHandler(DeviceWorker* worker, swapper::CopyService* copies)
      : worker_(worker), copies_(copies) {}

  absl::Status SetUpJob(const runtime::AttachedJob& job) override {
    HARMONY_RETURN_IF_ERROR(worker_->SetUpJob(job));
    return copies_->SetUpJob(job.plan);
  }
  void EndJob() override {
    copies_->EndJob();
    worker_->EndJob();
  }
  absl::Status PrepareGeneration() override { return copies_->PrepareGeneration(); }
  void FillStats(v1::DeviceStats* stats) override {
    runtime::FillProcessStats(stats);
    const DeviceWorker::Stats worker = worker_->stats();
    stats->set_workspace_bytes(worker.workspace.count());
    stats->set_workspace_peak(worker.workspace_peak.count());
    stats->set_paced(static_cast<int64_t>(worker.paced));
    stats->set_overruns(static_cast<int64_t>(worker.overruns));
    copies_->FillStats(stats);
  }

 private:
  DeviceWorker* const worker_;
  swapper::CopyService* const copies_;
};

}  // namespace

absl::StatusOr<plan::DeviceSpec> FindDevice(const runtime::ProgramContext& context) {
  int number = -1;
  if (!absl::SimpleAtoi(context.device, &number) || number < 0 ||
      number >= static_cast<int>(context.devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device ", context.device, ": 'host' or a number below ", context.devices.size()));
  }
  return context.devices[static_cast<size_t>(number)];
}

absl::Status ServeDevice(runtime::ProgramContext& context, runtime::TerminationSignals& signals) {
  HARMONY_ASSIGN_OR_RETURN(const plan::DeviceSpec device, FindDevice(context));
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> backend, OpenBackend(context, device));
  std::string computes_on = backend->ComputesOn();
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceWorker> worker,
                           DeviceWorker::Create(device, std::move(backend)));
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<swapper::CopyService> copies,
                           swapper::CopyService::Open(context, swapper::Copies::OfWorker(device)));
  // It computes in its device's memory; who fills and empties that writes to the arena.
  if (!device.worker_copies) {
    HARMONY_RETURN_IF_ERROR(context.segment.KeepOnlySemaphoresWritable());
  }
  DeviceHandler handler(worker.get(), copies.get());
  runtime::SegmentSemaphores semaphores(&context.segment);
  const command::Lane lane{command::LaneKind::kCompute, device.ordinal};
  const command::LaneTable table(static_cast<int>(context.devices.size()));
  std::vector<runtime::LaneDefinition> lanes;
  lanes.push_back(
      {static_cast<uint32_t>(table.IndexOf(lane)), DebugString(lane),
       [&worker](const command::Command& command, const runtime::AwaitSemaphore& await) {
         return runtime::EndIfDeviceIsLost(worker->Run(command, await));
       }});
  copies->AddLanes(&lanes);
  runtime::AttachedOptions options = context.attached_options();
  options.role = runtime::AttachedRole::kWorker;
  options.device = device.ordinal;
  options.computes_on = std::move(computes_on);
  return runtime::ServeUntilStopped(options, std::move(lanes), &semaphores, &handler, signals);
}

}  // namespace harmony::worker
