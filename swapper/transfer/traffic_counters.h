#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/command/command.h"

namespace harmony::swapper {

enum class LinkDirection : uint8_t { kH2D, kD2H, kP2P };
const char* ToString(LinkDirection direction);

// Bytes and transfers that have completed, by device (for P2P the sending one), direction and
// traffic class. Thread-safe; each number is exact, a snapshot of several need not be one moment.
class TrafficCounters {
 public:
  explicit TrafficCounters(int num_devices);

  void Add(int device, LinkDirection direction, command::TrafficClass traffic, Bytes size);

  struct Row {
    int device = 0;
    LinkDirection direction = LinkDirection::kH2D;
    command::TrafficClass traffic = command::TrafficClass::kWeights;
    Bytes bytes;
    int64_t transfers = 0;
  };
  // Rows that are not zero, ordered by device, direction, class.
  std::vector<Row> Snapshot() const;
  // Sums over devices on one line: "h2d weights 1.50 GiB, ...".
  std::string DebugString() const;

 private:
  static constexpr int kDirections = 3;
  static constexpr int kClasses = static_cast<int>(command::TrafficClass::kRecovery) + 1;
  struct Cell {
    std::atomic<int64_t> bytes{0}, transfers{0};
  };
  using DeviceCells = std::array<Cell, kDirections * kClasses>;

  int num_devices_;
  std::unique_ptr<DeviceCells[]> devices_;
};

}  // namespace harmony::swapper
