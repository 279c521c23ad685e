#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/command/command.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "common/runtime/pacer.h"
#include "swapper/core/slot_ledger.h"
#include "swapper/memory/host_arena.h"
#include "swapper/transfer/copier.h"
#include "swapper/transfer/traffic_counters.h"

namespace harmony::swapper {

// Carries transfers out between the host arena and the memory of devices, paced when a device's
// links have a modelled rate. How bytes are moved is the copier's business.
//
// A transfer is checked (lane, bounds, record, live slots) before its first byte moves; then its
// retired records are set free, the bytes are copied, and its record is published last. So a
// process killed at any point leaves either no record or one whose data are complete.
//
// Run is called by all transfer lanes at once.
class CopyEngine {
 public:
  // `arena` must outlive the engine; the copier is of the same devices.
  CopyEngine(HostArena* arena, std::vector<plan::DeviceSpec> devices,
             std::unique_ptr<Copier> copier);

  // FailedPrecondition: the record does not hold what is expected, or a live transfer uses the
  // memory. OutOfRange: an endpoint lies outside its memory. InvalidArgument: not a transfer of its
  // lane. Messages name the command.
  absl::Status Run(const command::Command& command);

  // See Copier. BeginJob reads the arena's extent and the devices' resident parts, which transfers
  // keep to; a plan without devices gives them all of it.
  absl::Status BeginJob(const plan::Plan& plan);
  absl::Status EndJob() { return copier_->EndJob(); }

  const TrafficCounters& counters() const { return counters_; }
  uint64_t paced_transfers() const;
  uint64_t overruns() const;

 private:
  struct Route {
    Copy copy;
    int device = 0;  // whose link it takes
    LinkDirection direction = LinkDirection::kH2D;
  };
  struct Links {
    runtime::Pacer h2d{runtime::PacedWork::kCopy}, d2h{runtime::PacedWork::kCopy},
        p2p{runtime::PacedWork::kCopy};
  };

  absl::Status RunTransfer(const command::Command& command, const command::Transfer& transfer);
  absl::StatusOr<Route> Resolve(uint32_t lane, const command::Transfer& transfer) const;
  absl::Status CheckBounds(const SlotRange& range) const;
  absl::Status CheckRecords(const command::Transfer& transfer) const;
  absl::Status Execute(const command::Transfer& transfer, const Route& route, uint64_t id);
  void Count(const Route& route, const command::Transfer& transfer);
  BytesPerSecond RateOf(const Route& route) const;
  runtime::Pacer& PacerOf(const Route& route);

  HostArena* const arena_;
  const std::vector<plan::DeviceSpec> devices_;
  const std::unique_ptr<Copier> copier_;
  std::vector<Bytes> resident_;  // by device: what transfers may reach; the rest is its worker's
  const command::LaneTable lanes_;
  TrafficCounters counters_;
  std::vector<std::unique_ptr<Links>> links_;
  std::vector<size_t> root_of_;  // by device: whose links to the host it uses

  Mutex ledger_mutex_;
  SlotLedger ledger_ ABSL_GUARDED_BY(ledger_mutex_);
  SlotLedger::Token next_token_ ABSL_GUARDED_BY(ledger_mutex_) = 1;
};

}  // namespace harmony::swapper
