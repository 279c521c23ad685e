#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/device/compute_device.h"
#include "worker/graphs/layer_places.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// The gradients of the tensors that enter a layer, while a backward makes them: that of a value
// which later layers read as well begins with what comes back from there, and what a graph makes is
// added; one that nothing comes back for is zero. Lives during one call; functions throw c10::Error
// when a binding is missing or does not fit.
class InputGradients {
 public:
  // `behind`: the gradients of the tensors behind the layer. `tensors` are written.
  InputGradients(const LayerPlaces& places, Tensors behind, Tensors tensors, ComputeDevice& device);

  // Where a gradient that is the first of its sum may be made; undefined where it is not.
  at::Tensor PlaceOf(int gradient, at::IntArrayRef shape) const;
  // `gradient`: the position among the tensors; `shape`: in which the graph has it.
  void Add(int gradient, const at::Tensor& value, at::IntArrayRef shape);
  // Call once, when all is added.
  void Finish();

 private:
  at::Tensor SumOf(int gradient, at::IntArrayRef shape) const;

  const Tensors tensors_;
  ComputeDevice& device_;
  std::vector<bool> written_;
};

}  // namespace harmony::worker
