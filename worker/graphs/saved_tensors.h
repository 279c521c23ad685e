#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "common/model/exported_model.h"
#include "worker/device/device_tensor.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// What a layer's forward leaves for its backward: tensors where the forward made them or, where one
// is given, in a place for all of them, which may be read in another task. Functions throw
// c10::Error when a tensor is not what the model says.
class SavedTensors : public SavedActivations {
 public:
  // The place that they need. A multiple of kSlotAlignment.
  static Bytes PlaceBytes(const std::vector<model::ExportedTensor>& types, int64_t samples);

  // `types` outlives it.
  SavedTensors(const std::vector<model::ExportedTensor>& types, int64_t samples,
               DeviceAddress place, c10::Device device);

  // Where one belongs; undefined where it may lie anywhere.
  at::Tensor PlaceOf(size_t index) const;
  // `outputs`: places that the value may lie in, which do not last as long.
  void Put(size_t index, const at::Tensor& value, Tensors outputs);
  // What was put there, in this task or into the place by an earlier one.
  at::Tensor Take(size_t index);
  // Gives up what was not taken.
  void Clear() { tensors_.clear(); }

 private:
  const std::vector<model::ExportedTensor>& types_;
  const int64_t samples_;
  const DeviceAddress place_;
  const c10::Device device_;
  std::vector<at::Tensor> tensors_;  // without a place
};

}  // namespace harmony::worker
