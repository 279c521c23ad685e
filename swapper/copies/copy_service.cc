#include "swapper/copies/copy_service.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/base/status.h"
#include "common/command/lane_kinds.h"
#include "common/rpc/wire_fields.h"
#include "swapper/copies/copiers.h"

namespace harmony::swapper {

Copies Copies::OfSwapper(const std::vector<plan::DeviceSpec>& devices) {
  Copies copies;
  for (const plan::DeviceSpec& device : devices) {
    if (!device.worker_copies) copies.devices.push_back(device.ordinal);
  }
  return copies;
}

Copies Copies::OfWorker(const plan::DeviceSpec& device) {
  if (!device.worker_copies) return {};
  return {.devices = {device.ordinal}, .in_compute_context = true};
}

absl::StatusOr<std::unique_ptr<CopyService>> CopyService::Open(runtime::ProgramContext& context,
                                                               const Copies& copies) {
  std::unique_ptr<CopyService> service(new CopyService(context, copies));
  if (copies.devices.empty()) return service;
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<Copier> copier, OpenCopier(context, copies));
  service->engine_.emplace(&service->arena_, context.devices, std::move(copier));
  return service;
}

void CopyService::AddLanes(std::vector<runtime::LaneDefinition>* lanes) {
  for (const int device : copies_.devices) {
    command::ForEachLaneKindOf(command::LaneOwner::kSwapper, [&](command::LaneKind kind) {
      const command::Lane lane{kind, device};
      lanes->push_back({static_cast<uint32_t>(table_.IndexOf(lane)), DebugString(lane),
                        [this](const command::Command& command, const auto&) {
                          return runtime::EndIfDeviceIsLost(Run(command));
                        }});
    });
  }
}

absl::Status CopyService::Run(const command::Command& command) {
  const absl::Status status = engine_->Run(command);
  // A fault of a task is told to whoever asks first.
  return copies_.in_compute_context
             ? WithContext(status, "in the context in which this worker computes, too")
             : status;
}

absl::Status CopyService::SetUpJob(const plan::Plan& plan) {
  return engine_ ? runtime::EndIfDeviceIsLost(engine_->BeginJob(plan)) : absl::OkStatus();
}

void CopyService::EndJob() {
  if (!engine_) return;
  LogTraffic();
  if (absl::Status ended = runtime::EndIfDeviceIsLost(engine_->EndJob()); !ended.ok()) {
    spdlog::error("{}", ended.ToString());
  }
}

absl::Status CopyService::PrepareGeneration() {
  if (!engine_) return absl::OkStatus();
  LogTraffic();
  return arena_.Refresh();
}

void CopyService::FillStats(v1::DeviceStats* stats) const {
  if (!engine_) return;
  stats->set_paced(stats->paced() + static_cast<int64_t>(engine_->paced_transfers()));
  stats->set_overruns(stats->overruns() + static_cast<int64_t>(engine_->overruns()));
  for (const TrafficCounters::Row& row : engine_->counters().Snapshot()) {
    v1::Traffic* traffic = stats->add_traffic();
    traffic->set_device(row.device);
    traffic->set_direction(rpc::ToWire<v1::LinkDirection>(row.direction));
    traffic->set_traffic(rpc::ToWire<v1::TrafficClass>(row.traffic));
    traffic->set_bytes(row.bytes.count());
    traffic->set_transfers(row.transfers);
  }
}

void CopyService::LogTraffic() const {
  spdlog::info("moved so far: {}", engine_->counters().DebugString());
  if (engine_->paced_transfers() > 0) {
    spdlog::info("{} of {} paced transfers took longer than modelled", engine_->overruns(),
                 engine_->paced_transfers());
  }
}

}  // namespace harmony::swapper
