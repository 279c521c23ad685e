#pragma once

// The shared host segment: one anonymous file (memfd) that every process maps, and the single
// source of truth after any death (docs/segment.md tells its bytes).
//
// Who does what: the supervisor creates it and passes the descriptor on; the coordinator allocates
// and releases jobs and begins generations; each record and each semaphore has one writer, named by
// the plan. A Segment object is one process's mapping: thread-safe under these single-writer rules.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/command/objects.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/segment_layout.h"
#include "common/ipc/semaphore.h"

namespace harmony::ipc {

// A job as the segment knows it.
struct SegmentJob {
  std::string id;       // at most 63 bytes
  uint64_t digest = 0;  // of the keys that determine the result
  int record_count = 0;
  int64_t cursor_count = 0;  // see UpdateChunks
  Bytes extent;              // of the arena, from its start
  Bytes persistent;          // PersistentBytes
  std::string text;          // free: the job's description, up to kMaxJobText
};

class Segment {
 public:
  // A new segment of the virtual size `total`, sparse, sealed against shrinking; only its fixed
  // areas take memory. `total` is rounded down to pages. ResourceExhausted when too small to hold
  // an arena.
  static absl::StatusOr<Segment> Create(Bytes total);
  // What one of this size would hold; no arena where there is no room for one.
  struct Capacity {
    Bytes arena;
    int64_t records = 0, cursors = 0;
  };
  static Capacity CapacityOf(Bytes total);
  // The smallest size with such an arena.
  static Bytes SizeFor(Bytes arena);

  // Maps an existing one. DataLoss says what does not fit: magic, version, sizes or checksum.
  // `writable` false: for dumps; then nothing that writes may be called.
  static absl::StatusOr<Segment> Open(UniqueFd fd, bool writable = true);

  // From here on this process may write to semaphores only: a stray store to the header, records or
  // the arena ends it, where it would have changed what others rely on. Every copy of the mapping,
  // for good.
  absl::Status KeepOnlySemaphoresWritable();

  int fd() const { return fd_.get(); }
  const SegmentConstants& constants() const { return header()->constants; }

  // ---- Arena ----
  Bytes arena_size() const;
  // REQUIRES: offset within the arena. Only [0, extent) of the active job may be touched.
  std::byte* Arena(Bytes offset) const;

  // ---- Jobs ----
  // Clears what an earlier job left, allocates every page the job may touch, then declares it
  // active. ResourceExhausted says how much is missing, in the segment or in the machine; then no
  // job is active. AlreadyExists while another job is active.
  absl::Status AllocateJob(const SegmentJob& job);
  // What the segment takes of the machine while it holds such a job.
  Bytes MemoryWith(const SegmentJob& job) const;
  // Gives all memory of the job back. OK when there is none.
  absl::Status ReleaseJob();
  // NotFound when no job is active, DataLoss when its header is damaged.
  absl::StatusOr<SegmentJob> ReadJob() const;

  // ---- Records (indices of ObjectTableLayout) ----
  int record_capacity() const { return static_cast<int>(constants().records.count); }
  // A consistent copy, also while the writer is at work. DataLoss when the checksum fails.
  absl::StatusOr<command::ObjectView> ReadRecord(int record) const;
  absl::StatusOr<std::vector<command::ObjectView>> ReadRecords(int count) const;
  // Commits: everything written before is visible to whoever reads the record. One store when
  // place and size stay as they are; else the record reads as free in between. Writer only.
  void Publish(int record, const command::ObjectView& view);
  void SetFree(int record);

  // ---- Update cursors ----
  int64_t cursor_capacity() const { return static_cast<int64_t>(constants().cursors.count); }
  UpdateCursor* Cursor(int64_t index) const;

  // ---- Generations and semaphores ----
  uint32_t generation() const { return header()->generation.load(std::memory_order_acquire); }
  GenerationGuard Guard(uint32_t generation) const { return {&header()->generation, generation}; }
  // Raises the generation word to `generation` and releases everyone who waits in older banks.
  // FailedPrecondition when the word stands above it already.
  absl::Status RaiseGeneration(uint32_t generation);
  // After all survivors are quiet: zeroes the generation's bank and declares it ready. Idempotent
  // until the first signal. FailedPrecondition unless the generation word says `generation`.
  absl::Status BeginGeneration(uint32_t generation);
  uint32_t prepared_generation() const {
    return header()->prepared_generation.load(std::memory_order_acquire);
  }
  // REQUIRES: index < kSemaphoresPerBank.
  TimelineSemaphore Semaphore(uint32_t generation, uint32_t index) const;

 private:
  Segment(UniqueFd fd, MappedRegion map) : fd_(std::move(fd)), map_(std::move(map)) {}
  SegmentHeader* header() const { return reinterpret_cast<SegmentHeader*>(map_.data()); }
  JobHeader* job_header() const;
  ObjectRecord* RecordAt(int record) const;
  SemaphoreCell* Bank(uint32_t bank) const;
  absl::Status AllocatePages(const SegmentArea& area, uint64_t bytes, const char* what);
  absl::Status PunchOut(const SegmentArea& area);

  UniqueFd fd_;
  MappedRegion map_;
};

// Number of chunks (cursors) of a block of `elements` elements, and of a model's first `blocks`
// blocks: the cursor of chunk c of block b is number CursorBase(model, b) + c.
int64_t UpdateChunks(int64_t elements);
int64_t CursorBase(const model::ModelSpec& model, int blocks);
inline int64_t CursorCount(const model::ModelSpec& model) {
  return CursorBase(model, static_cast<int>(model.blocks.size()));
}

}  // namespace harmony::ipc
