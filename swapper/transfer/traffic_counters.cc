#include "swapper/transfer/traffic_counters.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::swapper {

const char* ToString(LinkDirection direction) {
  switch (direction) {
    case LinkDirection::kH2D:
      return "h2d";
    case LinkDirection::kD2H:
      return "d2h";
    case LinkDirection::kP2P:
      return "p2p";
  }
  return "?";
}

TrafficCounters::TrafficCounters(int num_devices)
    : num_devices_(num_devices), devices_(std::make_unique<DeviceCells[]>(num_devices)) {}

void TrafficCounters::Add(int device, LinkDirection direction, command::TrafficClass traffic,
                          Bytes size) {
  Cell& cell = devices_[device][static_cast<int>(direction) * kClasses + static_cast<int>(traffic)];
  cell.bytes.fetch_add(size.count(), std::memory_order_relaxed);
  cell.transfers.fetch_add(1, std::memory_order_relaxed);
}

std::vector<TrafficCounters::Row> TrafficCounters::Snapshot() const {
  std::vector<Row> rows;
  for (int device = 0; device < num_devices_; ++device) {
    for (int i = 0; i < kDirections * kClasses; ++i) {
      const Cell& cell = devices_[device][i];
      const int64_t transfers = cell.transfers.load(std::memory_order_relaxed);
      if (transfers == 0) continue;
      rows.push_back({device, static_cast<LinkDirection>(i / kClasses),
                      static_cast<command::TrafficClass>(i % kClasses),
                      Bytes(cell.bytes.load(std::memory_order_relaxed)), transfers});
    }
  }
  return rows;
}

std::string TrafficCounters::DebugString() const {
  std::map<std::pair<LinkDirection, command::TrafficClass>, Bytes> sums;
  for (const Row& row : Snapshot()) sums[{row.direction, row.traffic}] += row.bytes;
  std::string text;
  for (const auto& [key, bytes] : sums) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", ToString(key.first), " ", ToString(key.second),
                    " ", FormatBytes(bytes));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace harmony::swapper
