#pragma once

// What the records of the segment say has been done, and what is left of a step. PURE.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/command/objects.h"
#include "common/model/model_spec.h"
#include "common/plan/arena_layout.h"
#include "common/plan/plan.h"

namespace harmony::recovery {

class Frontier {
 public:
  // `records` in the order of `table`, or empty. Naming the object: Internal when versions
  // contradict each other, DataLoss when a parameter or moment does not exist although steps have
  // run.
  static absl::StatusOr<Frontier> FromRecords(const command::ObjectTableLayout& table,
                                              absl::Span<const command::ObjectView> records,
                                              int64_t first_step);

  // All parameters and moments exist.
  bool initialized() const { return initialized_; }
  // The first step whose updates are not all done.
  int64_t step() const { return step_; }
  // All parameters and moments are exactly those before that step: no update of it has begun.
  bool whole() const { return whole_; }
  // Steps whose update is in the block (an update under way does not count).
  int64_t block_version(int block) const { return block_version_[block]; }
  // An update has destroyed (or is destroying) the block's state of before `step`.
  bool Touched(int block, int64_t step) const {
    return block_version_[block] > step || (block_version_[block] == step && updating_[block]);
  }
  // The object holds exactly this version, complete.
  bool Holds(const command::ObjectKey& key, int64_t version) const {
    return clean_version_[table_->IndexOf(key)] == version;
  }
  Bytes OffsetOf(const command::ObjectKey& key) const { return offset_[table_->IndexOf(key)]; }

 private:
  explicit Frontier(const command::ObjectTableLayout& table) : table_(&table) {}

  const command::ObjectTableLayout* table_;
  bool initialized_ = false, whole_ = false;
  int64_t step_ = 0;
  std::vector<int64_t> block_version_;
  std::vector<bool> updating_;          // by block: on the way to the next version
  std::vector<int64_t> clean_version_;  // by record; -1: holds nothing complete
  std::vector<Bytes> offset_;           // by record
};

// What is left to do of one step, of a forward group's shard.
struct ForwardWork {
  std::vector<int> tasks;  // to run, ascending; counted in forward tasks of the step
  int last = -1;           // the last layer to run
};

// Of one step. Groups, then their shards.
struct StepWork {
  int64_t step = 0;
  bool resumed = false;  // records of this step exist: it was under way when the generation began
  bool load_batch = false;
  std::vector<std::vector<ForwardWork>> forward;
  // It runs, for all microbatches of the shard. The last group is the fused one.
  std::vector<std::vector<bool>> backward;
  bool scalars = false;
  std::vector<bool> update;  // by block
};

// Derives it top down: a shard of a group whose gradients of the shard's parts are not all
// committed runs from its stash and the committed gradient of its output, and so do the shards that
// add up a part with it; where that gradient is missing, the shards of the group above that make it
// (the forward tasks) run again. So one device may be groups ahead of another, and keeps its lead.
// What devices kept is forgotten: the forward that makes it runs again. Internal when a group would
// have to run whose old weights are gone: updates begin when all that needs the old weights is
// committed, so such records contradict one another.
absl::StatusOr<StepWork> DeriveStepWork(const model::ModelSpec& model, const plan::Plan& plan,
                                        const plan::ArenaLayout& layout, const Frontier& frontier,
                                        int64_t step);

}  // namespace harmony::recovery
