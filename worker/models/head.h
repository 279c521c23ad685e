#pragma once

// The last layer: final norm, projection to the vocabulary, cross entropy; forward and backward in
// one, in chunks of rows, so that the logits never exist whole.

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "common/command/objects.h"
#include "common/model/model_config.h"
#include "worker/models/layer_params.h"

namespace harmony::worker {

// From x [N, C] and labels [N]: the loss (its sum and the number of labels), dx (gradient of
// loss / total_labels), and the parameters' gradients, added to. OutOfRange names a label beyond
// the vocabulary, by its row.
absl::StatusOr<command::LossSlot> HeadForwardBackward(const Primitives& with,
                                                      const model::ModelConfig& config,
                                                      const LayerParams& params,
                                                      const at::Tensor& x, const at::Tensor& labels,
                                                      int64_t total_labels, at::Tensor& dx);

}  // namespace harmony::worker
