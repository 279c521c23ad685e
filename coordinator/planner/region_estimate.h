#pragma once

// Who holds, and until when somebody used, the pieces of a device's region: RegionLedger without
// the commands, for estimates. PURE.

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"

namespace harmony {

class RegionEstimate {
 public:
  // Of the last users of a piece: when the last of them began, and when all have ended.
  struct Use {
    Nanos began, ended;
  };

  void Clear() { pieces_.clear(); }
  // Takes [begin, end), which is not empty; `used` is raised by the last users of what was there.
  // False, and nothing is taken, while some of it is held.
  bool Take(int64_t begin, int64_t end, Use* used);
  // Gives back what was taken from `begin` on.
  void Release(int64_t begin, Use use);

 private:
  struct Piece {
    int64_t begin = 0, end = 0;
    bool held = false;
    Use use;
  };
  std::vector<Piece> pieces_;  // disjoint, ascending
};

}  // namespace harmony
