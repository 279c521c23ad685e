#pragma once

// The bytes of the shared segment, as docs/segment.md tells them. Everything here can be read after
// the death of any process at any instruction: constant parts carry checksums, changing parts are
// single words that are stored last.
//
//   header | semaphore banks | job | record table | update cursors | data (the arena)
//
// Every area starts on a page. Nothing here owns anything; Segment (segment.h) maps it.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace harmony::ipc {

inline constexpr uint64_t kSegmentMagic = 0x4745534f4d524148;  // "HARMOSEG", little endian
inline constexpr uint32_t kSegmentLayoutVersion = 3;
inline constexpr uint64_t kSegmentPage = 4096;
// Generations use the banks in turn. The others stay poisoned until then, so that a process that
// has not heard of a new generation finds in the old one's bank that it is over.
inline constexpr uint32_t kSemaphoreBanks = 4;
inline constexpr uint32_t kSemaphoresPerBank = 512;  // one for each lane

// An object is updated in chunks of this many elements, each with a cursor of its own; the unit
// that the cursor counts, and that an undo slot holds, is a vector of kVectorElements. Both belong
// to the layout: never a function of thread count or instruction set.
inline constexpr uint64_t kUpdateChunkElements = 256 * 1024;
inline constexpr uint64_t kVectorElements = 16;

struct SegmentArea {
  uint64_t offset = 0;  // from the start of the segment
  uint64_t bytes = 0;
  uint64_t count = 0;   // elements it has room for
  uint64_t stride = 0;  // bytes of an element
};
static_assert(sizeof(SegmentArea) == 32);

// What a segment is made of; written once, before anybody else sees it.
struct SegmentConstants {
  uint64_t magic = 0;
  uint32_t layout_version = 0;
  uint32_t header_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t page_bytes = 0;
  SegmentArea semaphores, job, records, cursors, data;
  uint32_t num_banks = 0;
  uint32_t semaphores_per_bank = 0;
  uint64_t chunk_elements = 0;
  uint64_t vector_elements = 0;
  uint64_t reserved[4] = {};
  uint64_t checksum = 0;  // XXH3-64 of all bytes before it
};
static_assert(sizeof(SegmentConstants) == 256 && offsetof(SegmentConstants, checksum) == 248);

struct SegmentHeader {
  SegmentConstants constants;
  alignas(64) std::atomic<uint32_t> generation;  // only ever raised
  // The generation whose bank (generation % num_banks) is zeroed and ready; 0: none.
  alignas(64) std::atomic<uint32_t> prepared_generation;
};
static_assert(offsetof(SegmentHeader, generation) == 256 &&
              offsetof(SegmentHeader, prepared_generation) == 320 && sizeof(SegmentHeader) == 384);

// One timeline semaphore; see semaphore.h.
struct alignas(64) SemaphoreCell {
  std::atomic<uint64_t> value;
  std::atomic<uint32_t> futex_word;
  std::atomic<uint32_t> waiters;
  uint64_t reserved[6];
};
static_assert(sizeof(SemaphoreCell) == 64 && offsetof(SemaphoreCell, futex_word) == 8 &&
              offsetof(SemaphoreCell, waiters) == 12);

enum class SegmentJobState : uint64_t {
  kNone = 0,    // no job; areas may hold leftovers of one whose end was cut short
  kActive = 1,  // the rest of the job header is complete, memory is allocated
};

struct JobHeader {
  std::atomic<uint64_t> state;  // SegmentJobState, stored last
  uint64_t digest;              // of the keys that determine the result
  char id[64];                  // zero-terminated
  uint64_t record_count;
  uint64_t cursor_count;
  uint64_t extent_bytes;      // allocated bytes of the arena, from its start
  uint64_t persistent_bytes;  // of them, parameters and moments
  uint64_t text_bytes;        // of the job's description, behind this header
  uint64_t text_checksum;     // XXH3-64
  uint64_t reserved[8];
  uint64_t checksum;  // XXH3-64 of the bytes from `digest` up to here
};
static_assert(sizeof(JobHeader) == 200 && offsetof(JobHeader, digest) == 8 &&
              offsetof(JobHeader, checksum) == 192);
inline constexpr uint64_t kJobAreaBytes = 64 * 1024;
inline constexpr uint64_t kMaxJobText = kJobAreaBytes - sizeof(JobHeader);

// One object. Fields but `word` are only meaningful while the state in `word` is not kFree, and
// change only while it is kFree.
struct alignas(64) ObjectRecord {
  std::atomic<uint64_t> word;  // version << 2 | ObjectState; stored last: the commit
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> size;
  std::atomic<uint64_t> key;       // kind << 56 | index (28 bits) << 28 | number (28 bits)
  std::atomic<uint64_t> checksum;  // XXH3-64 of offset, size, key
  uint64_t reserved[3];
};
static_assert(sizeof(ObjectRecord) == 64);

// The old values of one vector: parameter and moments.
struct UndoSlot {
  float w[kVectorElements];
  float m[kVectorElements];
  float v[kVectorElements];
};
static_assert(sizeof(UndoSlot) == 192);

// The progress of the update of one chunk. `position` is
//   0       nothing written yet
//   k       vectors before k-1 are written; vector k-1 may be half-written, slots[(k-1) % 2] holds
//           its old values
//   n + 1   all n vectors are written
struct UpdateCursor {
  // Constant during one update, complete before the parameter's record says kUpdating.
  uint64_t target_version;  // what the update leads to
  int32_t block;
  int32_t chunk;  // within the block
  double learning_rate;
  double clip_coefficient;      // 1 without clipping
  uint64_t elements;            // of the chunk
  int32_t gradient_records[2];  // the first two; -1: none
  uint64_t more_gradients;      // XXH3-64 of the other records' numbers (int32 each); 0: none
  uint64_t checksum;            // XXH3-64 of the bytes before it
  alignas(64) std::atomic<uint64_t> position;
  alignas(64) UndoSlot slots[2];
};
static_assert(sizeof(UpdateCursor) == 512 && offsetof(UpdateCursor, checksum) == 56 &&
              offsetof(UpdateCursor, position) == 64 && offsetof(UpdateCursor, slots) == 128);

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

}  // namespace harmony::ipc
