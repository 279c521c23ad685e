#pragma once

// Tensors of the project's kind as LibTorch's. Functions throw c10::Error.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/dtype.h"
#include "common/model/exported_model.h"
#include "worker/device/device_tensor.h"
#include "worker/device/torch_tensors.h"

namespace harmony::worker {

// A view of a tensor that a call binds, in the shape that graphs know it by. Throws when it is not
// bound, or is another tensor than `type` says.
at::Tensor Wrap(const DeviceTensor& tensor, const model::ExportedTensor& type, int64_t samples,
                c10::Device device);

// Throws when what a graph made is not of the size and type of the place that it is put into or
// added to: copying would stretch a smaller tensor, or convert it. `what` is the made one.
void CheckFits(const at::Tensor& made, const at::Tensor& place, absl::string_view what);

// Copies what a graph made into its place, where it was not made there. Both are contiguous or do
// not overlap; `what` is the made one, which fits (CheckFits).
void PutInto(const at::Tensor& place, const at::Tensor& made, absl::string_view what);

// Adds to a sum, which may be wider than what is added and is of its size.
void AddInto(const at::Tensor& sum, const at::Tensor& made);

}  // namespace harmony::worker
