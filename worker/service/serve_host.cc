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

namespace harmony::worker {
namespace {

// Both lanes use the executor at once; it is replaced only while they are idle.
class HostHandler : public runtime::AttachedHandler {
 public:
  HostHandler(ipc::Segment* segment, bool paced) : segment_(segment), paced_(paced) {}

  absl::Status SetUpJob(const runtime::AttachedJob& job) override {
    executor_ = nullptr;  // first: it may hold files that the next one opens
    HARMONY_ASSIGN_OR_RETURN(const ipc::SegmentJob held, segment_->ReadJob());
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
    runtime::FillProcessStats(stats);
    stats->set_paced(static_cast<int64_t>(pacer_.paced()));
    stats->set_overruns(static_cast<int64_t>(pacer_.overruns()));
  }

  absl::Status Run(const command::Command& command) {
    const command::HostTask* task = std::get_if<command::HostTask>(&command.body);
    if (task == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("command ", command.header.id, " is not a host task"));
    }
    if (executor_ == nullptr) return absl::FailedPreconditionError("host worker: no job is set up");
    const bool modelled =
        task->kind == command::HostTaskKind::kUpdate || task->kind == command::HostTaskKind::kNorm;
    if (!paced_ || !modelled || command.header.expected == Nanos()) {
      return executor_->Execute(*task, command.header);
    }
    const runtime::Pacer::Reservation reservation = pacer_.Reserve(command.header.expected);
    HARMONY_RETURN_IF_ERROR(executor_->Execute(*task, command.header));
    pacer_.FinishAt(reservation);
    return absl::OkStatus();
  }

 private:
  ipc::Segment* const segment_;
  const bool paced_;
  runtime::Pacer pacer_{runtime::PacedWork::kCompute};  // of host_compute
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<HostExecutor> executor_;
  ipc::Prefault prefault_;
};

}  // namespace

absl::Status ServeHost(runtime::ProgramContext& context, runtime::TerminationSignals& signals) {
  HostHandler handler(&context.segment, plan::PacedHostRate(context.devices).value > 0);
  runtime::SegmentSemaphores semaphores(&context.segment);
  const command::LaneTable table(static_cast<int>(context.devices.size()));
  std::vector<runtime::LaneDefinition> lanes;
  for (command::LaneKind kind : {command::LaneKind::kHostCompute, command::LaneKind::kHostIo}) {
    const command::Lane lane{kind, 0};
    lanes.push_back({static_cast<uint32_t>(table.IndexOf(lane)), DebugString(lane),
                     [&handler](const command::Command& command, const auto&) {
                       return handler.Run(command);
                     }});
  }
  runtime::AttachedOptions options = context.attached_options();
  options.role = runtime::AttachedRole::kHostWorker;
  return runtime::ServeUntilStopped(options, std::move(lanes), &semaphores, &handler, signals);
}

}  // namespace harmony::worker
