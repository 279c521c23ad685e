#include <atomic>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/ipc/prefault.h"
#include "common/runtime/pacer.h"
#include "common/runtime/segment_semaphores.h"
#include "harmony/v1/attach.pb.h"
#include "worker/host/host_executor.h"
#include "worker/service/serve.h"

namespace harmony {
namespace {

// Both lanes use the executor at once; it is replaced only while they are idle.
class HostHandler : public AttachedHandler {
 public:
  HostHandler(Segment* segment, bool paced) : segment_(segment), paced_(paced) {}

  absl::Status SetUpJob(const AttachedJob& job) override {
    executor_ = nullptr;  // first: it may hold files that the next one opens
    HARMONY_ASSIGN_OR_RETURN(const SegmentJob held, segment_->ReadJob());
    prefault_.Start(segment_->Arena(Bytes(0)), held.extent);
    HostJob with_stop{job};
    with_stop.cancelled = &cancelled_;
    HARMONY_ASSIGN_OR_RETURN(executor_, HostExecutor::Create(*segment_, std::move(with_stop)));
    return absl::OkStatus();
  }
  void Cancel() override { cancelled_ = true; }
  absl::Status PrepareGeneration() override {
    cancelled_ = false;
    return absl::OkStatus();
  }
  void EndJob() override {
    prefault_.Stop();
    executor_ = nullptr;
  }
  void FillStats(v1::DeviceStats* stats) override {
    FillProcessStats(stats);
    stats->set_paced(static_cast<int64_t>(pacer_.paced()));
    stats->set_overruns(static_cast<int64_t>(pacer_.overruns()));
  }

  absl::Status Run(const Command& command) {
    const HostTask* task = std::get_if<HostTask>(&command.body);
    if (task == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("command ", command.header.id, " is not a host task"));
    }
    if (executor_ == nullptr) return absl::FailedPreconditionError("host worker: no job is set up");
    const bool modelled = task->kind == HostTaskKind::kUpdate || task->kind == HostTaskKind::kNorm;
    if (!paced_ || !modelled || command.header.expected == Nanos()) {
      return executor_->Execute(*task, command.header);
    }
    const Pacer::Reservation reservation = pacer_.Reserve(command.header.expected);
    HARMONY_RETURN_IF_ERROR(executor_->Execute(*task, command.header));
    pacer_.FinishAt(reservation);
    return absl::OkStatus();
  }

 private:
  Segment* const segment_;
  const bool paced_;
  Pacer pacer_{PacedWork::kCompute};  // of host_compute
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<HostExecutor> executor_;
  Prefault prefault_;
};

}  // namespace

absl::Status ServeHost(ProgramContext& context, TerminationSignals& signals) {
  HostHandler handler(&context.segment, PacedHostRate(context.devices).value > 0);
  SegmentSemaphores semaphores(&context.segment);
  const LaneTable table(static_cast<int>(context.devices.size()));
  std::vector<LaneDefinition> lanes;
  for (LaneKind kind : {LaneKind::kHostCompute, LaneKind::kHostIo}) {
    const Lane lane{kind, 0};
    lanes.push_back({static_cast<uint32_t>(table.IndexOf(lane)), DebugString(lane),
                     [&handler](const Command& command) { return handler.Run(command); }});
  }
  AttachedOptions options = context.attached_options();
  options.role = AttachedRole::kHostWorker;
  return ServeUntilStopped(options, std::move(lanes), &semaphores, &handler, signals);
}

}  // namespace harmony
