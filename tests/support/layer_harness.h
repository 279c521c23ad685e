#pragma once

// Tests of one layer's compute that every implementation of worker/layers/layer.h has to pass, on
// any device: they reach memory through ComputeDevice only. Expectations are GoogleTest's.

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/model/model_spec.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer.h"

namespace harmony::testing_support {

// What an implementation brings. All tensors but the inputs from the data set, which are int32, and
// the loss are fp32.
struct LayerCase {
  model::ModelSpec model;
  worker::LayerChain layers;
  worker::ComputeDevice* device = nullptr;
  int64_t samples = 1;  // of a microbatch
};

// One layer with memory for all that it is bound to, filled with noise. One thread.
class LayerHarness {
 public:
  LayerHarness(LayerCase& subject, int layer);
  ~LayerHarness();

  // Of every parameter and every input: the derivative of the loss (for an inner layer: of the
  // outputs' product with noise) along the gradient, by finite differences, is the gradient's norm.
  void GradientsAreDerivatives();
  // A backward that recomputes and one by what a forward kept have the same bits, and a forward
  // that keeps has those of one that does not; nothing behind the place is touched. Not of the last
  // layer.
  void KeptEqualsRecomputed();
  // Gradients of two microbatches add up in the buffer.
  void GradientsAccumulate();
  // What another implementation of the layer computes, within the rounding of fp32: outputs or
  // loss, and all gradients.
  void AgreesWith(LayerCase& other);
  // A forward over three microbatches gives each the bits that it gets alone. Not of the last
  // layer.
  void SeveralMicrobatchesEqualOneByOne();

 private:
  struct Buffer;
  struct Point;  // a tensor to differentiate by: values and gradient
  using Buffers = std::vector<std::unique_ptr<Buffer>>;

  bool last() const { return layer_ == subject_.model.num_layers() - 1; }
  const std::vector<model::SampleTensor>& TypesAt(int boundary) const;
  worker::Layer& layer() const { return *subject_.layers[static_cast<size_t>(layer_)]; }
  worker::LayerCall Call(int64_t samples, int64_t microbatch);
  std::unique_ptr<Buffer> NewBuffer(Bytes size) const;
  std::unique_ptr<Buffer> Noise(int64_t floats, float scale);
  void FillReference(int reference);
  void FillInput(size_t input, int64_t samples);
  // Buffers for the tensors of a boundary, and the tensors.
  Buffers Boundary(int boundary, int64_t samples, float scale);
  std::vector<worker::DeviceTensor> TensorsOf(int boundary, int64_t samples,
                                              const Buffers& buffers) const;

  // The function whose gradients are checked.
  double Value();
  // Forward (unless `place` holds what a forward left) and backward, into fresh gradients unless
  // they are to be added to.
  void Backward(worker::DeviceAddress place, bool add);
  std::vector<std::vector<float>> Gradients() const;
  std::vector<Point> Points() const;

  LayerCase& subject_;
  const int layer_;
  const int64_t samples_;
  CounterRandom random_;
  std::vector<worker::ReferenceBinding> references_;
  std::vector<worker::DeviceTensor> batch_;  // with room for all samples of any call
  Buffers weights_, gradients_, data_;
  Buffers inputs_, input_gradients_, outputs_, output_gradients_;
  std::unique_ptr<Buffer> loss_;
};

}  // namespace harmony::testing_support
