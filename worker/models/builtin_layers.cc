#include "worker/models/builtin_layers.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <iterator>
#include <utility>

#include "common/base/status.h"
#include "common/command/objects.h"
#include "common/model/families/causal_lm.h"
#include "worker/models/block.h"
#include "worker/models/embedding.h"
#include "worker/models/head.h"
#include "worker/models/layer_params.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

// Runs `body`, turning LibTorch's exceptions into a Status.
template <typename Body>
absl::Status Guarded(Body body) {
  try {
    c10::InferenceMode no_autograd;
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// What all layers of a model share. It outlives them.
struct BuiltinModel {
  BuiltinModel(const model::ModelSpec& model, const BuiltinLayerOptions& options,
               ComputeDevice& device)
      : model(model),
        options(options),
        device(device),
        portable(options.portable || device.target().kind != LayerTarget::Kind::kCpu
                     ? MakePortablePrimitives(device.target(), device.row_kernels())
                     : nullptr),
        with(portable ? *portable : CpuPrimitives()),
        block(MakeBlock(with, options.config)) {}

  BatchShape ShapeOf(const LayerCall& call) const {
    return {call.samples, options.tokens, call.microbatch};
  }
  // Hidden states [samples, T, C] as [N, C].
  at::Tensor Hidden(const DeviceTensor& tensor) const {
    TORCH_CHECK(tensor.address, "a boundary tensor is not bound");
    const int64_t hidden = options.config.hidden_size;
    return with.Wrap(tensor.address, tensor.dtype, {tensor.elements() / hidden, hidden});
  }
  DType activations() const { return model.boundaries[1][0].dtype; }
  at::Tensor Ids(const LayerCall& call, int input) const {
    TORCH_CHECK(input < std::ssize(call.batch) && call.batch[input].address,
                input == model::kLabels ? "labels" : "token ids", " are not bound");
    return with.Wrap(call.batch[input].address, DType::kI32, {call.samples * options.tokens});
  }

  const model::ModelSpec model;
  const BuiltinLayerOptions options;
  ComputeDevice& device;
  const std::unique_ptr<const Primitives> portable;
  const Primitives& with;
  const std::unique_ptr<Block> block;  // all blocks of a model have one shape
};

class BuiltinLayer : public Layer {
 public:
  BuiltinLayer(std::shared_ptr<const BuiltinModel> shared, int index)
      : shared_(std::move(shared)), index_(index) {}

  bool TakesSeveralMicrobatches() const override {
    // The products of bf16 are LibTorch's.
    return shared_->options.rows_independent && !shared_->portable &&
           shared_->activations() == DType::kF32;
  }
  Bytes KeptBytes(int64_t) const override { return Bytes(); }
  std::unique_ptr<SavedActivations> NewSaved(int64_t, DeviceAddress) const override {
    return nullptr;
  }
  absl::Status Forward(const LayerCall&, Tensors, Tensors, SavedActivations*) override {
    return absl::InternalError("the last layer runs in the fused task only");
  }
  absl::Status Backward(const LayerCall&, Tensors, Tensors, std::unique_ptr<SavedActivations>,
                        Tensors) override {
    return absl::InternalError("the last layer runs in the fused task only");
  }
  absl::Status ForwardBackward(const LayerCall&, const LossBinding&, Tensors, Tensors) override {
    return absl::InternalError("the fused task ends with the last layer");
  }

 protected:
  LayerParams Params(const LayerCall& call) const {
    return LayerParams(shared_->with, shared_->model, index_, call.references);
  }

  const std::shared_ptr<const BuiltinModel> shared_;
  const int index_;
};

class EmbeddingLayer : public BuiltinLayer {
 public:
  using BuiltinLayer::BuiltinLayer;

  absl::Status Forward(const LayerCall& call, Tensors, Tensors outputs,
                       SavedActivations*) override {
    return Guarded([&] {
      at::Tensor y = shared_->Hidden(outputs[0]);
      return EmbeddingForward(shared_->with, shared_->options.config, Params(call),
                              shared_->ShapeOf(call), shared_->Ids(call, model::kTokenIds), y);
    });
  }

  absl::Status Backward(const LayerCall& call, Tensors, Tensors output_gradients,
                        std::unique_ptr<SavedActivations>, Tensors) override {
    return Guarded([&] {
      EmbeddingBackward(shared_->with, shared_->options.config, Params(call),
                        shared_->ShapeOf(call), shared_->Ids(call, model::kTokenIds),
                        shared_->Hidden(output_gradients[0]), shared_->options.padding_token);
      return absl::OkStatus();
    });
  }
};

struct SavedBlock : SavedActivations {
  std::unique_ptr<BlockSaved> saved;
};

class BlockLayer : public BuiltinLayer {
 public:
  using BuiltinLayer::BuiltinLayer;

  Bytes KeptBytes(int64_t samples) const override {
    return model::KeptBlockBytes(shared_->options.config, shared_->activations(), samples,
                                 shared_->options.tokens);
  }

  std::unique_ptr<SavedActivations> NewSaved(int64_t samples, DeviceAddress place) const override {
    auto saved = std::make_unique<SavedBlock>();
    saved->saved = shared_->block->NewSaved({samples, shared_->options.tokens, samples},
                                            shared_->activations(), place);
    return saved;
  }

  absl::Status Forward(const LayerCall& call, Tensors inputs, Tensors outputs,
                       SavedActivations* saved) override {
    return Guarded([&] {
      at::Tensor y;
      if (!outputs.empty()) y = shared_->Hidden(outputs[0]);
      BlockSaved* const kept = saved ? static_cast<SavedBlock*>(saved)->saved.get() : nullptr;
      shared_->block->Forward(Params(call), shared_->ShapeOf(call), shared_->Hidden(inputs[0]), y,
                              kept);
      return absl::OkStatus();
    });
  }

  absl::Status Backward(const LayerCall& call, Tensors inputs, Tensors output_gradients,
                        std::unique_ptr<SavedActivations> saved, Tensors input_gradients) override {
    return Guarded([&] {
      at::Tensor dx = shared_->Hidden(input_gradients[0]);
      shared_->block->Backward(Params(call), shared_->ShapeOf(call), shared_->Hidden(inputs[0]),
                               shared_->Hidden(output_gradients[0]),
                               std::move(static_cast<SavedBlock&>(*saved).saved), dx);
      return absl::OkStatus();
    });
  }
};

class HeadLayer : public BuiltinLayer {
 public:
  using BuiltinLayer::BuiltinLayer;

  absl::Status ForwardBackward(const LayerCall& call, const LossBinding& loss, Tensors inputs,
                               Tensors input_gradients) override {
    return Guarded([&]() -> absl::Status {
      at::Tensor dx = shared_->Hidden(input_gradients[0]);
      HARMONY_ASSIGN_OR_RETURN(
          const command::LossSlot made,
          HeadForwardBackward(shared_->with, shared_->options.config, Params(call),
                              shared_->Hidden(inputs[0]), shared_->Ids(call, model::kLabels),
                              loss.total_labels, dx));
      return shared_->device.Write(
          loss.slot, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&made), sizeof(made)));
    });
  }
};

}  // namespace

LayerChain MakeBuiltinLayers(const model::ModelSpec& model, const BuiltinLayerOptions& options,
                             ComputeDevice& device) {
  const auto shared = std::make_shared<const BuiltinModel>(model, options, device);
  LayerChain layers;
  for (const model::LayerSpec& layer : model.layers) {
    if (layer.index == 0) {
      layers.push_back(std::make_unique<EmbeddingLayer>(shared, layer.index));
    } else if (layer.index + 1 < model.num_layers()) {
      layers.push_back(std::make_unique<BlockLayer>(shared, layer.index));
    } else {
      layers.push_back(std::make_unique<HeadLayer>(shared, layer.index));
    }
  }
  return layers;
}

}  // namespace harmony::worker
