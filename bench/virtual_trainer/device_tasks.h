#pragma once

// What a device with virtualised memory computes: the product's layers and optimizer, on the
// tensors of a task.

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/baselines/engine/layer_costs.h"
#include "bench/baselines/engine/recording.h"
#include "bench/virtual_trainer/device_pages.h"
#include "common/model/model_config.h"
#include "worker/device/cpu_device.h"
#include "worker/device/cpu_memory.h"
#include "worker/layers/layer_runner.h"
#include "worker/optimizer/thread_pool.h"

namespace harmony::bench {

// The tensors of a task, each in one piece, and its scratch.
class TaskTensors {
 public:
  // The action must outlive it. `view`: the stays of its uses, then its scratch.
  TaskTensors(const baselines::Action& action, PageView view)
      : action_(action), view_(std::move(view)) {}

  // Null: the task has none.
  std::byte* data(baselines::Tensor tensor) const {
    const int at = Find(tensor);
    return at < 0 ? nullptr : view_.part(static_cast<size_t>(at)).data();
  }
  worker::DeviceAddress address(baselines::Tensor tensor) const {
    return worker::AddressOf(data(tensor));
  }
  // Whether the task is the first to write it.
  bool made(baselines::Tensor tensor) const {
    const int at = Find(tensor);
    return at >= 0 && action_.uses[static_cast<size_t>(at)].made;
  }
  absl::Span<std::byte> scratch() const { return view_.part(action_.uses.size()); }

 private:
  int Find(baselines::Tensor tensor) const;

  const baselines::Action& action_;
  PageView view_;
};

// One thread at a time.
class DeviceTasks {
 public:
  // `costs` must outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceTasks>> Create(const model::ModelConfig& config,
                                                             int64_t padding_token,
                                                             const baselines::LayerCosts& costs);

  // Forward or backward of a layer. `loss`: where the last layer leaves it. What leaves the device
  // lies at the beginning of the scratch, and is returned: empty, nothing does. Errors: those of
  // worker::LayerRunner.
  absl::StatusOr<absl::Span<const std::byte>> RunLayer(const baselines::Work& work,
                                                       const TaskTensors& tensors,
                                                       const worker::LossBinding& loss);
  // The update that ends step number `step`.
  void RunUpdate(const baselines::Work& work, const TaskTensors& tensors, int step);

 private:
  DeviceTasks(const baselines::LayerCosts& costs, std::unique_ptr<worker::CpuDevice> device,
              worker::LayerChain layers);

  worker::GroupBinding Bind(const baselines::Work& work, const TaskTensors& tensors) const;
  // Those that this task is the first to add to.
  void ZeroGradients(const baselines::Work& work, const TaskTensors& tensors) const;

  const baselines::LayerCosts& costs_;
  const model::ModelSpec& model_;
  const std::unique_ptr<worker::CpuDevice> device_;
  worker::LayerRunner runner_;
  worker::ThreadPool pool_{1};
};

// One gradient as several devices have it. Each adds up an equal part, of which this is number
// `own`, in the order of the devices' sum tree (common/model/sum_tree.h), and hands the sum to all
// others: as much comes and goes as in a ring. The bytes that were moved. REQUIRES: a power of two
// of them, of `count` numbers.
Bytes ReducePart(absl::Span<float* const> gradients, size_t own, size_t count);

}  // namespace harmony::bench
