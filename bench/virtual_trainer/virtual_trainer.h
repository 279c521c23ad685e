#pragma once

// A trainer whose devices have virtualised memory, for real: a schedule of bench/baselines carried
// out by the product's layers and optimizer, its tensors in a memory of each device that is as
// large as it says and no larger, its copies copies. What moves when is what the schedule's model
// decided, from the same list; bytes are counted where they are copied.
//
// What the model leaves out lies outside the devices here: the loss of a microbatch, and what is on
// its way from a device to another.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/baselines/baseline.h"
#include "common/model/model_config.h"

namespace harmony::bench {

struct VirtualJob {
  // All must outlive the trainer. `costs` has the job, its model, the machine, and the microbatch
  // size.
  const model::ModelConfig* config = nullptr;
  int64_t padding_token = -1;  // see common/model/padding_token.h
  const baselines::LayerCosts* costs = nullptr;
  const baselines::Baseline* baseline = nullptr;
  // Its pages are kPage; as many steps are trained as it has.
  baselines::Setting setting;
};

// Of a step: [global batch, T].
struct Batch {
  std::vector<int32_t> tokens, labels;
};

struct VirtualStep {
  double loss = 0;
  double seconds = 0, modelled_seconds = 0;
  baselines::StepBytes moved, modelled;
  double update_seconds = 0;  // of the device that took longest; none in the model
};

struct VirtualRun {
  std::vector<VirtualStep> steps;
  uint64_t paced = 0, overruns = 0;  // operations, and those that ended late
};

class VirtualTrainer {
 public:
  // Errors: ResourceExhausted when a task's tensors do not fit a device (which is named);
  // Unimplemented where the job asks for what is not built: bf16, clipping, gradients of a number
  // of devices that is no power of two.
  static absl::StatusOr<std::unique_ptr<VirtualTrainer>> Create(const VirtualJob& job);
  virtual ~VirtualTrainer() = default;

  // As the host worker begins a new model (worker/host/init.h).
  virtual void InitializeRandom(uint64_t seed) = 0;
  // All steps, once. `paced`: in the model's time at least. Errors: those of layers; Internal where
  // something is used that is not where it has to be.
  virtual absl::StatusOr<VirtualRun> Run(absl::Span<const Batch> batches, bool paced) = 0;
};

}  // namespace harmony::bench
