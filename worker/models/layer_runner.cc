#include "worker/models/layer_runner.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/models/block.h"
#include "worker/models/embedding.h"
#include "worker/models/gemm_kernel.h"
#include "worker/models/head.h"
#include "worker/models/kernels.h"
#include "worker/models/layer_params.h"

namespace harmony {
namespace {

constexpr char kNonFinitePayload[] = "harmony/nonfinite";

std::string TaskName(const char* phase, const GroupBinding& b) {
  return absl::StrCat(phase, " of layers ", b.layers.first, "..", b.layers.last, " (", b.samples,
                      " sequences of ", b.tokens, " tokens)");
}

// Runs `body`, turning LibTorch's exceptions into a Status that names the task.
template <typename Body>
absl::Status Guarded(const char* phase, const GroupBinding& binding, Body body) {
  try {
    c10::InferenceMode no_autograd;
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(TaskName(phase, binding), ": ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat(TaskName(phase, binding), ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(TaskName(phase, binding), ": ", error.what()));
  }
}

bool Finite(const at::Tensor& tensor) {
  return kernels::AllFinite(tensor.const_data_ptr<float>(), tensor.numel());
}

}  // namespace

absl::Status NonFiniteError(int layer, const std::string& what) {
  absl::Status status = absl::InternalError(
      absl::StrCat("the ", what, " of layer ", layer, " is not finite (infinite or not a number)"));
  status.SetPayload(kNonFinitePayload, absl::Cord(absl::StrCat(layer)));
  return status;
}

bool IsNonFiniteError(const absl::Status& status) {
  return status.GetPayload(kNonFinitePayload).has_value();
}

void SetComputeThreads(int threads) {
  at::set_num_threads(threads);
  // LibTorch takes this one once in a process.
  static const bool one_between_operations = [] {
    at::set_num_interop_threads(1);
    return true;
  }();
  (void)one_between_operations;
}

// A layer's input and what its forward kept, from the forward to the backward of one task.
struct Kept {
  at::Tensor input;
  std::unique_ptr<BlockSaved> saved;
};

struct LayerRunner::State {
  State(ModelSpec spec, bool rows_independent)
      : model(std::move(spec)),
        block(MakeBlock(model.config)),
        rows_independent(rows_independent) {}

  BatchShape Shape(const GroupBinding& b) const {
    return BatchShape{b.samples, b.tokens, b.microbatch > 0 ? b.microbatch : b.samples};
  }
  at::IntArrayRef HiddenShape(const GroupBinding& b) {
    hidden_shape[0] = b.samples * b.tokens;
    hidden_shape[1] = model.config.hidden_size;
    return hidden_shape;
  }
  at::Tensor NewHidden(const GroupBinding& b) { return at::empty(HiddenShape(b), at::kFloat); }
  at::Tensor WrapHidden(const GroupBinding& b, const float* data) {
    return WrapFloat(data, HiddenShape(b));
  }
  at::Tensor WrapInput(const GroupBinding& b) {
    TORCH_CHECK(b.input, "the group's input is not bound");
    return WrapHidden(b, b.input);
  }
  LayerParams Params(const GroupBinding& b, int layer) const {
    return LayerParams(model, layer, b.uses);
  }
  LayerKind KindOf(int layer) const { return model.layers[layer].kind; }

  // Where the forward of a layer leaves what its backward needs; null: nowhere.
  float* KeptPlaceOf(const GroupBinding& b, int layer) const;
  // Of a layer that is not the group's last: its output, behind that.
  at::Tensor KeptOutputOf(const GroupBinding& b, int layer);
  // The memory for the output of a layer: bound, kept, or from the workspace.
  at::Tensor OutputOf(const GroupBinding& b, int layer);
  absl::Status Embed(const GroupBinding& b, at::Tensor& y);
  void ZeroGradients(const GroupBinding& b);
  // Blocks from layers.last (or the one given) down to the group's first; dy is consumed.
  void BackwardBlocks(const GroupBinding& b, int last, at::Tensor dy, std::vector<Kept>& kept);
  absl::Status CheckGradients(const GroupBinding& b);

  absl::Status Forward(const GroupBinding& b);
  // Microbatch after microbatch.
  absl::Status ForwardInSlices(const GroupBinding& b);
  absl::Status Backward(const GroupBinding& b);
  absl::Status ForwardBackward(const GroupBinding& b);

  const ModelSpec model;
  const std::unique_ptr<Block> block;  // all blocks of a model have one shape
  const bool rows_independent;
  int64_t padding_token = -1;
  int64_t hidden_shape[2] = {0, 0};
};

float* LayerRunner::State::KeptPlaceOf(const GroupBinding& b, int layer) const {
  if (b.kept == nullptr) return nullptr;
  const Bytes hidden = BoundaryBytes(model, 1, b.samples, b.tokens).AlignUp(kSlotAlignment);
  const Bytes each = KeptBlockBytes(model.config, b.samples, b.tokens) + hidden;
  const int64_t floats = each.count() / static_cast<int64_t>(sizeof(float));
  return b.kept + (layer - std::max(b.layers.first, 1)) * floats;
}

at::Tensor LayerRunner::State::KeptOutputOf(const GroupBinding& b, int layer) {
  const Bytes block = KeptBlockBytes(model.config, b.samples, b.tokens);
  return WrapHidden(b, KeptPlaceOf(b, layer) + block.count() / static_cast<int64_t>(sizeof(float)));
}

at::Tensor LayerRunner::State::OutputOf(const GroupBinding& b, int layer) {
  if (b.kept != nullptr && layer > 0 && layer < b.layers.last) return KeptOutputOf(b, layer);
  for (const BoundaryOutput& output : b.outputs) {
    if (output.boundary == layer + 1) return WrapHidden(b, output.data);
  }
  return NewHidden(b);
}

absl::Status LayerRunner::State::Embed(const GroupBinding& b, at::Tensor& y) {
  TORCH_CHECK(b.token_ids, "token ids are not bound");
  HARMONY_RETURN_IF_ERROR(EmbeddingForward(model.config, Params(b, 0), Shape(b), b.token_ids, y));
  return Finite(y) ? absl::OkStatus() : NonFiniteError(0, "output");
}

void LayerRunner::State::ZeroGradients(const GroupBinding& b) {
  if (!b.first_microbatch) return;
  for (const UseBinding& use : b.uses) {
    if (!use.gradients) continue;
    kernels::Zero(use.gradients, model.blocks[model.uses[use.use].block].elements);
  }
}

void LayerRunner::State::BackwardBlocks(const GroupBinding& b, int last, at::Tensor dy,
                                        std::vector<Kept>& kept) {
  for (int layer = last; layer >= std::max(b.layers.first, 1); --layer) {
    const bool bound = layer == b.layers.first;
    TORCH_CHECK(!bound || b.input_gradient, "the input gradient is not bound");
    at::Tensor dx = bound ? WrapHidden(b, b.input_gradient) : NewHidden(b);
    Kept entry = std::move(kept.back());
    kept.pop_back();
    block->Backward(Params(b, layer), Shape(b), entry.input, dy, std::move(entry.saved), dx);
    dy = dx;
  }
  if (b.layers.first == 0) {
    TORCH_CHECK(b.token_ids, "token ids are not bound");
    EmbeddingBackward(model.config, Params(b, 0), Shape(b), b.token_ids, dy, padding_token);
  }
}

absl::Status LayerRunner::State::CheckGradients(const GroupBinding& b) {
  if (!b.last_microbatch) return absl::OkStatus();
  for (int layer = b.layers.last; layer >= b.layers.first; --layer) {
    for (int use : model.layers[layer].uses) {
      for (const UseBinding& bound : b.uses) {
        if (bound.use != use) continue;
        const ParamBlock& params = model.blocks[model.uses[use].block];
        if (!kernels::AllFinite(bound.gradients, params.elements)) {
          return NonFiniteError(layer, absl::StrCat("weight gradient (", params.name, ")"));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::State::Forward(const GroupBinding& b) {
  at::Tensor x;
  if (b.layers.first > 0) x = WrapInput(b);
  for (int layer = b.layers.first; layer <= b.layers.last; ++layer) {
    TORCH_CHECK(KindOf(layer) != LayerKind::kHead, "the head runs in the fused task only");
    at::Tensor y = OutputOf(b, layer);
    if (layer == 0) {
      HARMONY_RETURN_IF_ERROR(Embed(b, y));
    } else {
      std::unique_ptr<BlockSaved> saved;
      if (b.kept != nullptr) saved = block->NewSaved(Shape(b), KeptPlaceOf(b, layer));
      block->Forward(Params(b, layer), Shape(b), x, y, saved.get());
      if (!Finite(y)) return NonFiniteError(layer, "output");
    }
    x = std::move(y);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::State::ForwardInSlices(const GroupBinding& b) {
  const int64_t rows = b.microbatch * b.tokens, hidden = rows * model.config.hidden_size;
  GroupBinding slice = b;
  slice.samples = b.microbatch;
  for (int64_t done = 0; done < b.samples; done += b.microbatch) {
    HARMONY_RETURN_IF_ERROR(Forward(slice));
    if (slice.input) slice.input += hidden;
    if (slice.token_ids) slice.token_ids += rows;
    for (BoundaryOutput& output : slice.outputs) output.data += hidden;
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::State::Backward(const GroupBinding& b) {
  ZeroGradients(b);
  std::vector<Kept> kept;
  at::Tensor x;
  TORCH_CHECK(b.output_gradient, "the output gradient is not bound");
  if (b.layers.last > 0) x = WrapInput(b);
  for (int layer = std::max(b.layers.first, 1); layer <= b.layers.last; ++layer) {
    TORCH_CHECK(KindOf(layer) == LayerKind::kBlock, "the head runs in the fused task only");
    kept.push_back({x, block->NewSaved(Shape(b), KeptPlaceOf(b, layer))});
    const bool last = layer == b.layers.last;  // its output is not needed
    if (b.kept != nullptr) {
      if (!last) x = KeptOutputOf(b, layer);
      continue;
    }
    at::Tensor y;
    if (!last) y = NewHidden(b);
    block->Forward(Params(b, layer), Shape(b), x, y, kept.back().saved.get());
    x = std::move(y);
  }
  BackwardBlocks(b, b.layers.last, WrapHidden(b, b.output_gradient), kept);
  return CheckGradients(b);
}

absl::Status LayerRunner::State::ForwardBackward(const GroupBinding& b) {
  const int head = model.num_layers() - 1;
  TORCH_CHECK(b.layers.last == head, "the fused task ends with the head");
  TORCH_CHECK(b.labels && b.loss && b.total_labels > 0, "labels or loss are not bound");
  ZeroGradients(b);
  at::Tensor x;
  if (b.layers.first == 0) {
    x = NewHidden(b);
    HARMONY_RETURN_IF_ERROR(Embed(b, x));
  } else {
    x = WrapInput(b);
  }
  std::vector<Kept> kept;
  for (int layer = std::max(b.layers.first, 1); layer < head; ++layer) {
    at::Tensor y = NewHidden(b);
    kept.push_back({x, block->NewSaved(Shape(b), nullptr)});
    block->Forward(Params(b, layer), Shape(b), x, y, kept.back().saved.get());
    if (!Finite(y)) return NonFiniteError(layer, "output");
    x = std::move(y);
  }
  const bool bound = b.layers.first == head;
  TORCH_CHECK(!bound || b.input_gradient, "the input gradient is not bound");
  at::Tensor dx = bound ? WrapHidden(b, b.input_gradient) : NewHidden(b);
  HARMONY_ASSIGN_OR_RETURN(
      *b.loss, HeadForwardBackward(model.config, Params(b, head), x, b.labels, b.total_labels, dx));
  if (!std::isfinite(b.loss->loss_sum)) return NonFiniteError(head, "loss");
  x.reset();
  if (!bound) BackwardBlocks(b, head - 1, std::move(dx), kept);
  return CheckGradients(b);
}

LayerRunner::LayerRunner(ModelSpec model)
    : LayerRunner(std::move(model), gemm::RowsIndependent()) {}
LayerRunner::LayerRunner(ModelSpec model, bool rows_independent)
    : state_(std::make_unique<State>(std::move(model), rows_independent)) {}
LayerRunner::~LayerRunner() = default;

void LayerRunner::set_padding_token(int64_t token) { state_->padding_token = token; }

absl::Status LayerRunner::RunForward(const GroupBinding& binding) {
  return Guarded("forward", binding, [&] {
    const int64_t one = binding.microbatch;
    TORCH_CHECK(one <= 0 || binding.samples % one == 0, "microbatches of ", one, " sequences");
    const bool slices = !state_->rows_independent && one > 0;
    return slices ? state_->ForwardInSlices(binding) : state_->Forward(binding);
  });
}

absl::Status LayerRunner::RunBackward(const GroupBinding& binding) {
  return Guarded("backward", binding, [&] { return state_->Backward(binding); });
}

absl::Status LayerRunner::RunForwardBackward(const GroupBinding& binding) {
  return Guarded("forward-backward", binding, [&] { return state_->ForwardBackward(binding); });
}

}  // namespace harmony
