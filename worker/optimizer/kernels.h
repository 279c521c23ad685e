#pragma once

// The inner loops of the optimizer, once per instruction set. All variants do the same operations
// in the same order without fused multiply-adds, so all give the same bits; which one runs is
// decided at run time.
//
// Vectors are kVectorElements wide whatever the registers are: undo slots, decay segments and norm
// lanes are defined on them.

#include <atomic>
#include <cstdint>

#include "common/base/units.h"
#include "common/ipc/segment_layout.h"

namespace harmony::worker {

enum class Isa { kScalar, kAvx2, kAvx512 };
const char* ToString(Isa isa);
bool IsaSupported(Isa isa);
Isa BestIsa();  // of this machine

// The gradients that a sum consists of: of each reference its parts, as many of each, a power of
// two. Those of a reference are added up as model/sum_tree.h says; then the references, from the
// first to the last, in fp32.
struct GradientTerms {
  const void* const* data = nullptr;
  int references = 1;
  int parts = 1;  // of each
  // From where a gradient begins to where its element 0 would lie, were all elements of this type.
  Bytes shift;
  bool bf16 = false;  // else fp32
};

// Elements [begin, end) of a block's buffers. REQUIRES: begin a multiple of kVectorElements.
struct UpdateRange {
  float* w = nullptr;
  // Gets each new w, rounded to the nearest bf16 (ties to even); null: there is no working copy. No
  // undo slot has it: a vector that is done again writes it again.
  uint16_t* copy = nullptr;
  float* m = nullptr;  // null for SGD without momentum
  float* v = nullptr;  // null for SGD
  GradientTerms gradients;
  int64_t begin = 0;
  int64_t end = 0;
  // Protected updates: the cursor's position and slots, and the element that position 1 stands for.
  // Null: unprotected.
  ipc::UpdateCursor* cursor = nullptr;
  int64_t cursor_base = 0;
  // Set where a sum of several gradients is not finite: each of them may be. Null: nobody asks.
  std::atomic<bool>* not_finite = nullptr;
};

// AdamW in PyTorch's order, element by element:
//   g = the sum of the gradients * clip
//   w = w * decay                                  decay = 1 - lr * weight_decay, or 1
//   m = m + (1 - beta1) * (g - m)                  from the gradient's side when beta1 <= 0.5
//   v = v * beta2 + ((1 - beta2) * g) * g
//   w = w - step_size * (m / (sqrt(v) / bias2_sqrt + epsilon))
// with step_size = lr / (1 - beta1^t) and bias2_sqrt = sqrt(1 - beta2^t), computed in double.
struct AdamWConstants {
  float clip = 1;
  float decay = 1;
  float lerp = 0;  // 1 - beta1
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float step_size = 0;
  float bias2_sqrt = 1;
  float epsilon = 0;
};

// SGD in PyTorch's order:
//   g = the sum of the gradients * clip + weight_decay * w
//   with momentum:  m = m * momentum + g,  g = nesterov ? g + momentum * m : m
//   w = w - lr * g
struct SgdConstants {
  float clip = 1;
  float weight_decay = 0;  // 0 where it does not apply
  float learning_rate = 0;
  float momentum = 0;  // where UpdateRange::m is not null
  bool nesterov = false;
};

struct Kernels {
  void (*adamw)(const UpdateRange&, const AdamWConstants&);
  void (*sgd)(const UpdateRange&, const SgdConstants&);
  // Sum in fp64 of the squares of elements [begin, end) of the gradients' sum (as in an update):
  // element i goes to lane (i - begin) mod kVectorElements, lanes are added up in order.
  double (*squared_norm)(const GradientTerms& gradients, int64_t begin, int64_t end);
};

// REQUIRES: IsaSupported(isa).
const Kernels& KernelsFor(Isa isa);

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace harmony::worker
