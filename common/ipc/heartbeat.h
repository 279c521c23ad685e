#pragma once

// How processes show the launcher that they run: a word of shared memory each, which it adds to and
// the launcher watches (client/launcher/heartbeat_watch.h). docs/heartbeat.md tells the bytes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::ipc {

inline constexpr uint64_t kHeartbeatMagic = 0x54414542'4d524148;  // "HARMBEAT", little endian
inline constexpr uint32_t kHeartbeatLayoutVersion = 1;

struct HeartbeatHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t cells;  // that follow
  uint64_t reserved[6];
};
static_assert(sizeof(HeartbeatHeader) == 64 && offsetof(HeartbeatHeader, layout_version) == 8 &&
              offsetof(HeartbeatHeader, cells) == 12);

// One process's; a cache line, so that no process slows another.
struct alignas(64) HeartbeatCell {
  std::atomic<uint64_t> beats;  // of the incarnation that runs; 0: none yet
  uint64_t reserved[7];
};
static_assert(sizeof(HeartbeatCell) == 64 && offsetof(HeartbeatCell, beats) == 0 &&
              std::atomic<uint64_t>::is_always_lock_free);

inline constexpr char kHeartbeatVariable[] = "HARMONY_HEARTBEAT";  // "7:2", descriptor:cell

// The launcher's side: all cells. Thread-safe; movable.
class HeartbeatTable {
 public:
  // An anonymous file that can neither grow nor shrink, all of it zero but its header.
  // REQUIRES: cells > 0.
  static absl::StatusOr<HeartbeatTable> Create(int cells);

  int fd() const { return fd_.get(); }
  // What kHeartbeatVariable is to say to the process of this cell.
  std::string VariableFor(int cell) const;
  uint64_t beats(int cell) const;
  // Back to 0, for the next incarnation. REQUIRES: the last one has been reaped.
  void Reset(int cell);

 private:
  HeartbeatTable(UniqueFd fd, MappedRegion map) : fd_(std::move(fd)), map_(std::move(map)) {}
  HeartbeatCell* Cell(int cell) const;

  UniqueFd fd_;
  MappedRegion map_;
};

// A process's side: its own cell. Thread-safe; movable.
class Heartbeat {
 public:
  // Beats for nobody.
  Heartbeat() = default;
  // The cell that the environment names, or one that beats for nobody where it names none: then no
  // launcher watches. FailedPrecondition when it names no open descriptor, DataLoss when the
  // table's header does not fit. Call once.
  static absl::StatusOr<Heartbeat> Inherited();

  // A launcher watches.
  bool watched() const { return cell_ != nullptr; }
  void Beat() {
    if (cell_ != nullptr) cell_->beats.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  MappedRegion map_;
  HeartbeatCell* cell_ = nullptr;  // within map_
};

}  // namespace harmony::ipc
