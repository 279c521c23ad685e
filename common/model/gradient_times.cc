#include "common/model/gradient_times.h"

#include "common/model/model_sizes.h"

namespace harmony::model {

GradientTimes::GradientTimes(const ModelSpec& model) {
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    flops_.push_back(ForwardFlops(model, layer, 1));
  }
}

std::vector<double> GradientTimes::Shares(BackwardTask task, LayerRange layers) const {
  double forward = 0;
  for (int layer = layers.first; layer <= layers.last; ++layer) {
    forward += flops_[static_cast<size_t>(layer)];
  }
  const double all = forward * (task == BackwardTask::kKept ? 2 : 3);
  double passed = task == BackwardTask::kKept ? 0 : forward;
  // The last layer computes its loss and goes back at once.
  const double last = flops_[static_cast<size_t>(layers.last)];
  if (task == BackwardTask::kFused) passed -= last;
  std::vector<double> shares(static_cast<size_t>(layers.last - layers.first + 1));
  for (int layer = layers.last; layer >= layers.first; --layer) {
    shares[static_cast<size_t>(layer - layers.first)] = all > 0 ? passed / all : 0;
    passed += 2 * flops_[static_cast<size_t>(layer)];
    if (task == BackwardTask::kFused && layer == layers.last) passed += last;
  }
  return shares;
}

}  // namespace harmony::model
