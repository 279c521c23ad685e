#include "worker/graphs/input_gradients.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "worker/graphs/tensors.h"

namespace harmony::worker {

InputGradients::InputGradients(const LayerPlaces& places, Tensors behind, Tensors tensors,
                               ComputeDevice& device)
    : tensors_(tensors), device_(device), written_(tensors.size()) {
  TORCH_CHECK(tensors.size() == places.input_gradients && behind.size() == places.output_gradients,
              "gradients: ", tensors.size(), " before and ", behind.size(),
              " behind the layer are bound, not ", places.input_gradients, " and ",
              places.output_gradients);
  for (const PassedValue& value : places.passed) {
    if (value.from.gradient == kNowhere) continue;
    const DeviceTensor& from = behind[static_cast<size_t>(value.to.gradient)];
    Add(value.from.gradient,
        TensorOver(from.address, from.dtype, from.shape, TorchDeviceOf(device_.target())),
        from.shape);
  }
}

at::Tensor InputGradients::SumOf(int gradient, at::IntArrayRef shape) const {
  const DeviceTensor& tensor = tensors_[static_cast<size_t>(gradient)];
  TORCH_CHECK(tensor.address && tensor.elements() == c10::multiply_integers(shape),
              "input gradient ", gradient, " is not bound, or to a tensor of another size");
  return TensorOver(tensor.address, tensor.dtype, shape, TorchDeviceOf(device_.target()));
}

at::Tensor InputGradients::PlaceOf(int gradient, at::IntArrayRef shape) const {
  return written_[static_cast<size_t>(gradient)] ? at::Tensor() : SumOf(gradient, shape);
}

void InputGradients::Add(int gradient, const at::Tensor& value, at::IntArrayRef shape) {
  const auto index = static_cast<size_t>(gradient);
  const at::Tensor sum = SumOf(gradient, shape);
  if (written_[index]) {
    CheckFits(value, sum, "gradient of an input");
    sum.add_(value);
  } else {
    PutInto(sum, value, "gradient of an input");
  }
  written_[index] = true;
}

void InputGradients::Finish() {
  for (size_t i = 0; i < written_.size(); ++i) {
    if (written_[i]) continue;
    const DeviceTensor& tensor = tensors_[i];
    device_.Zero(tensor.address, SizeOf(tensor.dtype) * tensor.elements());
  }
}

}  // namespace harmony::worker
