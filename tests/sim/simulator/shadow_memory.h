#pragma once

// What a memory would hold, without holding it: ranges with a tag that names their content. Every
// simulated read checks that it finds exactly what it expects, every write that nobody else is
// using the range. PURE.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "common/base/units.h"

namespace harmony::sim {

enum class Content : uint8_t {
  kNothing,
  kParameter,         // index: block; version: updates in it
  kActivation,        // index: boundary; version: step
  kBoundaryGradient,  // index: boundary; version: step
  kGradient,          // index: reference; the sum of microbatches `first` to `microbatch` - 1;
                      // version: step
  kBatchInput,        // index: its number; version: step
  kKept,              // index: first layer; version: step; what a forward left for its backward
  kLoss,              // one slot on a device; in the arena all of a part (index; microbatch -1)
};

struct Tag {
  Content content = Content::kNothing;
  int index = 0;
  int microbatch = 0;
  int64_t version = 0;
  int first = 0;
  bool operator==(const Tag&) const = default;
};
std::string DebugString(const Tag& tag);

class ShadowMemory {
 public:
  explicit ShadowMemory(Bytes size) : size_(size) {}

  // A command starts to use a range. Internal when another running command uses it in a way that
  // conflicts, or when it is out of bounds.
  absl::Status BeginRead(uint64_t user, Bytes begin, Bytes size);
  // Destroys what is there.
  absl::Status BeginWrite(uint64_t user, Bytes begin, Bytes size);
  // It has completed, or died.
  void EndAll(uint64_t user);

  void Put(Bytes begin, Bytes size, const Tag& tag);
  // Content of exactly this range; kNothing when it is not one whole object.
  Tag Get(Bytes begin, Bytes size) const;
  absl::Status Expect(Bytes begin, Bytes size, const Tag& tag) const;
  // The whole objects that fill exactly this range, in order; none when they do not.
  struct Object {
    Bytes offset;  // from the start of the range
    Bytes size;
    Tag tag;
  };
  absl::InlinedVector<Object, 1> Contents(Bytes begin, Bytes size) const;
  void Clear();
  Bytes size() const { return size_; }

 private:
  struct Cell {
    int64_t begin, end;
    Tag tag;
  };
  struct Use {
    uint64_t user;
    int64_t begin, end;
    bool write;
  };
  absl::Status Begin(uint64_t user, Bytes begin, Bytes size, bool write);
  void Erase(int64_t begin, int64_t end);

  Bytes size_;
  std::vector<Cell> cells_;  // disjoint, ascending
  std::vector<Use> uses_;
};

}  // namespace harmony::sim
