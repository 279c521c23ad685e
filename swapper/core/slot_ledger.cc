#include "swapper/core/slot_ledger.h"

#include "common/base/status.h"

namespace harmony::swapper {
namespace {

bool Overlap(const SlotRange& a, const SlotRange& b) {
  return a.device == b.device && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}

absl::Status Refused(const char* act, const SlotRange& wanted, const char* live_act,
                     const SlotRange& live) {
  return absl::FailedPreconditionError(absl::StrCat("transfer refused: it would ", act, " ",
                                                    DebugString(wanted), " while another ",
                                                    live_act, " ", DebugString(live)));
}

}  // namespace

std::string DebugString(const SlotRange& range) {
  const std::string memory =
      range.device < 0 ? std::string("arena") : absl::StrCat("device ", range.device);
  // Not its end: a range that was refused may have none.
  return absl::StrCat(memory, ", ", range.size.count(), " bytes at ", range.offset.count());
}

absl::Status SlotLedger::Open(Token token, const SlotRange& source, const SlotRange& destination) {
  if (Overlap(source, destination)) {
    return Refused("write", destination, "part of it reads", source);
  }
  for (const auto& [other, live] : live_) {
    if (Overlap(destination, live.source)) {
      return Refused("write", destination, "reads", live.source);
    }
    if (Overlap(destination, live.destination)) {
      return Refused("write", destination, "writes", live.destination);
    }
    if (Overlap(source, live.destination)) {
      return Refused("read", source, "writes", live.destination);
    }
  }
  live_[token] = {source, destination};
  return absl::OkStatus();
}

void SlotLedger::Close(Token token) { live_.erase(token); }

}  // namespace harmony::swapper
