#pragma once

// Names of the objects that live in the host arena, and where their records stand in the object
// table. PURE.
//
// Every object of a job has a fixed record index, a function of the model and of the numbers of
// microbatches and replicas only; so any process finds any object, after any
// crash, without a directory. Where its *data* lie is written in the record (parameters and moments
// are laid out once; the others move from step to step).

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/command/object_kinds.h"
#include "common/model/model_spec.h"

namespace harmony::command {

struct ObjectKey {
  ObjectKind kind = ObjectKind::kParameter;
  int32_t index = 0, number = 0;  // of what TraitsOf(kind) says
  auto operator<=>(const ObjectKey&) const = default;
};
std::string DebugString(const ObjectKey& key);

// What the last group's task leaves for each microbatch; 64 bytes, on the device and in the arena.
struct LossSlot {
  double loss_sum = 0;  // sum of the cross entropies of the microbatch
  int64_t label_count = 0;
  int64_t reserved[6] = {};
};
static_assert(sizeof(LossSlot) == 64);

// The scalars of one step, the content of a kStepScalars object. kStepScalars writes all but the
// clipping fields; with clipping, kClip fills those in and sets `clip_ready` last. Idempotent.
struct StepScalars {
  int64_t step = 0;         // index, from 0
  double loss_sum = 0;      // over the global batch
  int64_t label_count = 0;  // loss = loss_sum / label_count
  double learning_rate = 0;
  double grad_norm = 0;         // with clipping only
  double clip_coefficient = 1;  // what gradients are multiplied by, when `clip_ready`
  uint64_t clip_ready = 0;
  int64_t tokens = 0;  // of the global batch
  int64_t reserved[8] = {};
};
static_assert(sizeof(StepScalars) == 128);

// The content of a kNorm object.
struct NormSlot {
  double squared_norm = 0;  // of the block's gradient (both references summed), tensors in order
  int64_t reserved[7] = {};
};
static_assert(sizeof(NormSlot) == 64);

// Where parameters and optimizer moments lie: the front part of the arena, [0, PersistentBytes).
// All parameters first, then m, then v, then masters, blocks in order, each on a slot boundary.
// `moments` is the number of moments a parameter has (AdamW 2, SGD 0).
Bytes PersistentBytes(const model::ModelSpec& model, int moments);
// REQUIRES: a key of kind kParameter, kMoment1 or kMoment2.
Bytes PersistentOffset(const model::ModelSpec& model, const ObjectKey& key);
// Of a block's masters, which its parameter's record covers. REQUIRES: it has some.
Bytes MasterOffset(const model::ModelSpec& model, int moments, int block);
// Of the parameters of each block.
std::vector<Bytes> ParameterOffsets(const model::ModelSpec& model);

// Record indices.
class ObjectTableLayout {
 public:
  ObjectTableLayout(const model::ModelSpec& model, int num_microbatches, int replicas = 1);

  int IndexOf(const ObjectKey& key) const;  // REQUIRES: a key of this job
  ObjectKey KeyOf(int index) const;         // REQUIRES: 0 <= index < size()
  int size() const { return size_; }

  int num_blocks() const { return num_blocks_; }
  int num_references() const { return num_references_; }
  int num_boundaries() const { return num_boundaries_; }
  int num_microbatches() const { return num_microbatches_; }
  int replicas() const { return replicas_; }

 private:
  int num_blocks_, num_references_, num_boundaries_, num_microbatches_, replicas_;
  int size_;
};

// The state of a record, one 64-bit word (version << 2 | state) in the segment.
enum class ObjectState : uint8_t {
  kFree = 0,   // holds nothing
  kClean = 1,  // data of `version` are complete
  // Parameters and moments only: on the way to `version`; chunk cursors say how far. The
  // parameter's record decides; those of its moments turn kUpdating before it and clean before it.
  kUpdating = 2,
};

// A record copied out of the segment: what pure logic sees of the table.
struct ObjectView {
  ObjectKey key;
  Bytes offset;  // of the data, from the start of the arena
  Bytes size;
  uint64_t version = 0;
  ObjectState state = ObjectState::kFree;
};

}  // namespace harmony::command
