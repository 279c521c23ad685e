#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/units.h"

namespace harmony::swapper {

// A piece of one memory: the arena (-1) or a device's region.
struct SlotRange {
  int device = -1;
  Bytes offset;
  Bytes size;
};

// Which pieces of memory are being read or written by transfers now. A write that overlaps any live
// slot, or a read that overlaps one being written, is refused: the dispatcher never orders that, so
// it can only be a stale or damaged command, and the memory behind it is somebody's live data.
//
// PURE; the caller serialises.
class SlotLedger {
 public:
  using Token = uint64_t;

  // Opens a transfer from `source` to `destination`. FailedPrecondition names both pieces when
  // refused; then nothing is recorded.
  absl::Status Open(Token token, const SlotRange& source, const SlotRange& destination);
  // REQUIRES: `token` is open.
  void Close(Token token);

 private:
  struct Live {
    SlotRange source, destination;
  };
  std::map<Token, Live> live_;  // few: at most one a lane
};

std::string DebugString(const SlotRange& range);

}  // namespace harmony::swapper
