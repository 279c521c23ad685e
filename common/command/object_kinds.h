#pragma once

// What each kind of object in the host arena is: the one table that all ask. A new kind is an
// enumerator of ObjectKind and a row here; see docs/adding_a_kind.md. PURE.

#include <cstdint>

namespace harmony::command {

enum class ObjectKind : uint8_t {
  kParameter,  // the weights that layers read and, where these are working copies, their masters,
               // elsewhere; version v: v updates are in it
  kMoment1,    // AdamW's m, or SGD's momentum; versions as the parameter's
  kMoment2,    // AdamW's v
  // Of all that follows, version s+1 belongs to step index s.
  kGradient,          // of a part of the microbatches (LayerGroup::gradient_parts)
  kStash,             // what a forward task leaves at a boundary, which may have run several
                      // microbatches
  kBoundaryGradient,  // of a boundary's tensors, of one microbatch
  kLoss,              // LossSlots of a part's microbatches; those of all parts follow each other
  kBatch,             // inputs of the global batch (LayOutBatch)
  kStepScalars,       // see StepScalars
  kNorm,              // squared gradient norm of a block
};
inline constexpr int kObjectKinds = static_cast<int>(ObjectKind::kNorm) + 1;

// The program that commits its records.
enum class ObjectWriter : uint8_t { kHostWorker, kSwapper };

// What a number of an ObjectKey counts.
enum class ObjectCount : uint8_t {
  kOne,  // there is one: the number is 0
  kBlocks,
  kReferences,
  kBoundaries,    // between layers
  kTwoSteps,      // 0 and 1 in turn, step by step
  kParts,         // of a step's microbatches, each added up
  kForwardTasks,  // of the step
  kMicrobatches,  // of the step
};

struct ObjectTraits {
  const char* name = "";  // in messages
  ObjectWriter writer = ObjectWriter::kHostWorker;
  ObjectCount index = ObjectCount::kOne, number = ObjectCount::kOne;
};

constexpr ObjectTraits TraitsOf(ObjectKind kind) {
  using C = ObjectCount;
  using W = ObjectWriter;
  switch (kind) {
    case ObjectKind::kParameter:
      return {"parameter", W::kHostWorker, C::kBlocks};
    case ObjectKind::kMoment1:
      return {"moment1", W::kHostWorker, C::kBlocks};
    case ObjectKind::kMoment2:
      return {"moment2", W::kHostWorker, C::kBlocks};
    case ObjectKind::kGradient:
      return {"gradient", W::kSwapper, C::kReferences, C::kParts};
    case ObjectKind::kStash:
      return {"stash", W::kSwapper, C::kBoundaries, C::kForwardTasks};
    case ObjectKind::kBoundaryGradient:
      return {"boundary_gradient", W::kSwapper, C::kBoundaries, C::kMicrobatches};
    case ObjectKind::kLoss:
      return {"loss", W::kSwapper, C::kOne, C::kParts};
    case ObjectKind::kBatch:
      return {"batch", W::kHostWorker, C::kTwoSteps};
    case ObjectKind::kStepScalars:
      return {"step_scalars", W::kHostWorker, C::kTwoSteps};
    case ObjectKind::kNorm:
      return {"norm", W::kHostWorker, C::kBlocks};
  }
  return {};
}

}  // namespace harmony::command
