#pragma once

// The yardstick of exactness and of speed: the same layers and the same optimizer in one process,
// microbatch gradients accumulated in order (with several replicas: per replica, then those added
// up in order), everything in memory, nothing swapped.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/command/objects.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "worker/device/cpu_device.h"
#include "worker/device/cpu_memory.h"
#include "worker/layers/layer_runner.h"
#include "worker/models/builtin_layers.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/thread_pool.h"

namespace harmony::testing_support {

// A runner of a built-in family's layers, whose bindings are the caller's own memory (AddressOf).
std::unique_ptr<worker::LayerRunner> MakeRunner(const model::ModelSpec& model,
                                                const worker::BuiltinLayerOptions& options,
                                                worker::CpuDevice& device);

// Floats on a slot boundary, zeroed.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t count);
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  worker::DeviceAddress address() const { return worker::AddressOf(data_.get()); }
  int64_t size() const { return count_; }
  absl::Span<float> span() { return {data_.get(), static_cast<size_t>(count_)}; }
  absl::Span<const float> span() const { return {data_.get(), static_cast<size_t>(count_)}; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  int64_t count_;
  std::unique_ptr<float[], Free> data_;
};

struct StepResult {
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
};

// One thread. Memory: weights, a gradient per reference and replica, two moments per block,
// boundary tensors.
class PlainTrainer {
 public:
  // `groups` covers all layers in order; empty: one group of all. Fields of the job used: batch
  // sizes, replicas (auto: those of its mode), sequence length, optimizer, schedule, clipping.
  // `optimizer_threads` change no bit.
  PlainTrainer(const model::ModelConfig& config, const job::JobSpec& job,
               std::vector<model::LayerRange> groups = {}, int optimizer_threads = 1);

  void set_padding_token(int64_t token);
  // By what the layers are on devices other than the CPU.
  void ComputePortably();

  const model::ModelSpec& model() const { return model_; }
  // What the layers read. REQUIRES: a model of fp32.
  absl::Span<float> weights(int block) { return weights_[block].span(); }
  // The exact values of a tensor that is trained: the masters, where it has one.
  absl::Span<float> values(int block, const model::TensorSpec& tensor);
  // Makes the working copies from the masters, after these have been set.
  void RoundWeights();
  // Of one replica's microbatches.
  absl::Span<float> gradients(int reference, int replica = 0) {
    return gradients_[GradientIndex(reference, replica)].span();
  }

  // As the host worker does (worker/host/init.h): same seed, same bits.
  void InitializeRandom(uint64_t seed);

  // One optimizer step. tokens, labels: [global batch, T].
  absl::StatusOr<StepResult> Step(absl::Span<const int32_t> tokens,
                                  absl::Span<const int32_t> labels);
  // Its first half: the gradients of the mean loss; returns that loss.
  absl::StatusOr<double> AccumulateGradients(absl::Span<const int32_t> tokens,
                                             absl::Span<const int32_t> labels);

 private:
  worker::BlockGradient GradientOf(const model::ParamBlock& block) const;
  void Update(const StepResult& step);
  absl::Status RunMicrobatch(int index, const int32_t* tokens, const int32_t* labels,
                             int64_t total_labels);
  worker::GroupBinding Bind(int group, int microbatch) const;
  size_t GradientIndex(int reference, int replica) const {
    return static_cast<size_t>(reference * replicas_ + replica);
  }

  model::ModelConfig config_;
  model::ModelSpec model_;
  job::JobSpec job_;
  std::vector<model::LayerRange> groups_;
  worker::CpuDevice device_;
  worker::BuiltinLayerOptions layers_;
  std::unique_ptr<worker::LayerRunner> runner_;
  worker::BlockState StateOf(size_t block);

  std::vector<AlignedFloats> weights_, moments1_, moments2_, masters_;  // by block
  const int replicas_;
  mutable std::vector<AlignedFloats> gradients_;  // by reference, then replica
  std::vector<AlignedFloats> boundaries_;         // of each group but the first: its input
  std::vector<AlignedFloats> boundary_gradients_;
  AlignedFloats embedding_stash_;  // boundary 1, of a first group that is not the last
  std::vector<command::LossSlot> losses_;
  worker::ThreadPool optimizer_threads_;
  int64_t step_ = 0;
};

}  // namespace harmony::testing_support
