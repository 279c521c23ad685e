#include "swapper/transfer/copy_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/command/lane_kinds.h"

namespace harmony::swapper {
namespace {

// The links that a lane may use.
bool LaneServes(command::LaneKind lane, LinkDirection direction) {
  const command::LaneLink link = command::TraitsOf(lane).link;
  switch (direction) {
    case LinkDirection::kH2D:
      return link == command::LaneLink::kH2D;
    case LinkDirection::kD2H:
      return link == command::LaneLink::kD2H;
    case LinkDirection::kP2P:
      return link == command::LaneLink::kP2P;
  }
  return false;
}

}  // namespace

CopyEngine::CopyEngine(HostArena* arena, std::vector<plan::DeviceSpec> devices,
                       std::unique_ptr<Copier> copier)
    : arena_(arena),
      devices_(std::move(devices)),
      copier_(std::move(copier)),
      lanes_(static_cast<int>(devices_.size())),
      counters_(static_cast<int>(devices_.size())) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    resident_.push_back(copier_->MemoryOf(static_cast<int>(i)));
    links_.push_back(std::make_unique<Links>());
    root_of_.push_back(i);
    for (size_t d = 0; d < i && !devices_[i].root.empty(); ++d) {
      if (devices_[d].root == devices_[i].root) root_of_[i] = std::min(root_of_[i], d);
    }
  }
}

absl::Status CopyEngine::Run(const command::Command& command) {
  const command::Transfer* transfer = std::get_if<command::Transfer>(&command.body);
  if (transfer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", command.header.id, " is not a transfer"));
  }
  return WithContext(RunTransfer(command, *transfer),
                     absl::StrCat("transfer ", command.header.id, " (", ToString(transfer->traffic),
                                  ", step ", command.header.step + 1, ")"));
}

absl::Status CopyEngine::RunTransfer(const command::Command& command,
                                     const command::Transfer& transfer) {
  HARMONY_ASSIGN_OR_RETURN(const Route route, Resolve(command.header.lane, transfer));
  SlotLedger::Token token = 0;
  {
    MutexLock lock(ledger_mutex_);
    token = next_token_++;
    HARMONY_RETURN_IF_ERROR(ledger_.Open(token, route.copy.source, route.copy.destination));
  }
  absl::Status status = Execute(transfer, route, command.header.id);
  MutexLock lock(ledger_mutex_);
  ledger_.Close(token);
  return status;
}

absl::StatusOr<CopyEngine::Route> CopyEngine::Resolve(uint32_t lane,
                                                      const command::Transfer& transfer) const {
  Route route;
  route.copy = {static_cast<int>(lane),
                {transfer.source.device, transfer.source.offset, transfer.size},
                {transfer.destination.device, transfer.destination.offset, transfer.size}};
  HARMONY_RETURN_IF_ERROR(CheckBounds(route.copy.source));
  HARMONY_RETURN_IF_ERROR(CheckBounds(route.copy.destination));
  const bool from_host = transfer.source.device < 0, to_host = transfer.destination.device < 0;
  if (transfer.source.device == transfer.destination.device) {
    return absl::InvalidArgumentError("source and destination are one memory");
  }
  route.direction = from_host ? LinkDirection::kH2D
                    : to_host ? LinkDirection::kD2H
                              : LinkDirection::kP2P;
  route.device = from_host ? transfer.destination.device : transfer.source.device;
  const command::Lane expected = lanes_.LaneAt(static_cast<int>(lane));
  if (!LaneServes(expected.kind, route.direction) || expected.device != route.device) {
    return absl::InvalidArgumentError(absl::StrCat("a ", ToString(route.direction),
                                                   " transfer of device ", route.device,
                                                   " on lane ", DebugString(expected)));
  }
  if (!to_host && (transfer.commit.has_value() || !transfer.retire.empty())) {
    return absl::InvalidArgumentError("only a copy into the arena commits or retires records");
  }
  return route;
}

absl::Status CopyEngine::CheckBounds(const SlotRange& range) const {
  if (range.device >= static_cast<int>(devices_.size())) {
    return absl::OutOfRangeError(absl::StrCat("there is no device ", range.device));
  }
  const Bytes limit = range.device < 0 ? arena_->extent() : resident_[range.device];
  if (range.offset < Bytes(0) || range.size < Bytes(0) || range.offset > limit ||
      range.size > limit - range.offset) {
    return absl::OutOfRangeError(
        absl::StrCat(DebugString(range), " lies outside ", FormatBytesExact(limit)));
  }
  return absl::OkStatus();
}

absl::Status CopyEngine::CheckRecords(const command::Transfer& transfer) const {
  if (!transfer.expect.has_value()) return absl::OkStatus();
  return arena_->CheckHolds(*transfer.expect, transfer.source.offset, transfer.size);
}

absl::Status CopyEngine::Execute(const command::Transfer& transfer, const Route& route,
                                 uint64_t id) {
  HARMONY_RETURN_IF_ERROR(CheckRecords(transfer));
  const BytesPerSecond rate = RateOf(route);
  std::optional<runtime::Pacer::Reservation> reservation;
  if (rate.value > 0) {
    reservation = PacerOf(route).Reserve(runtime::ModelledDuration(transfer.size, rate), id);
  }
  for (int record : transfer.retire) HARMONY_RETURN_IF_ERROR(arena_->Retire(record));
  HARMONY_RETURN_IF_ERROR(copier_->Run(route.copy));
  // An object that changed under the copy means that its writer did not wait for this reader.
  HARMONY_RETURN_IF_ERROR_CTX(CheckRecords(transfer), "after the copy");
  if (reservation.has_value()) PacerOf(route).FinishAt(*reservation);
  if (transfer.commit.has_value()) {
    HARMONY_RETURN_IF_ERROR(
        arena_->Publish(*transfer.commit, transfer.destination.offset, transfer.size));
  }
  Count(route, transfer);
  return absl::OkStatus();
}

// What goes from device to device by way of the host takes both their links.
void CopyEngine::Count(const Route& route, const command::Transfer& transfer) {
  const int from = transfer.source.device, to = transfer.destination.device;
  if (route.direction != LinkDirection::kP2P || copier_->ReachesPeer(from, to)) {
    return counters_.Add(route.device, route.direction, transfer.traffic, transfer.size);
  }
  counters_.Add(from, LinkDirection::kD2H, transfer.traffic, transfer.size);
  counters_.Add(to, LinkDirection::kH2D, transfer.traffic, transfer.size);
}

absl::Status CopyEngine::BeginJob(const plan::Plan& plan) {
  HARMONY_RETURN_IF_ERROR(arena_->Refresh());
  for (size_t d = 0; d < devices_.size(); ++d) {
    const Bytes all = copier_->MemoryOf(static_cast<int>(d));
    resident_[d] = d < plan.devices.size() ? std::min(plan.devices[d].resident, all) : all;
  }
  return copier_->BeginJob(plan, arena_->extent());
}

BytesPerSecond CopyEngine::RateOf(const Route& route) const {
  const plan::DeviceSpec& device = devices_[route.device];
  switch (route.direction) {
    case LinkDirection::kH2D:
      return device.h2d;
    case LinkDirection::kD2H:
      return device.d2h;
    case LinkDirection::kP2P:
      return device.p2p;
  }
  return {};
}

runtime::Pacer& CopyEngine::PacerOf(const Route& route) {
  Links& root = *links_[root_of_[route.device]];
  switch (route.direction) {
    case LinkDirection::kH2D:
      return root.h2d;
    case LinkDirection::kD2H:
      return root.d2h;
    case LinkDirection::kP2P:
      break;
  }
  return links_[route.device]->p2p;
}

uint64_t CopyEngine::paced_transfers() const {
  uint64_t sum = 0;
  for (const auto& link : links_) sum += link->h2d.paced() + link->d2h.paced() + link->p2p.paced();
  return sum;
}

uint64_t CopyEngine::overruns() const {
  uint64_t sum = 0;
  for (const auto& link : links_) {
    sum += link->h2d.overruns() + link->d2h.overruns() + link->p2p.overruns();
  }
  return sum;
}

}  // namespace harmony::swapper
