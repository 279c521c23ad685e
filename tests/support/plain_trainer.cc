#include "tests/support/plain_trainer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/job/parameter_rules.h"
#include "common/model/sum_tree.h"
#include "tests/support/update_block.h"
#include "worker/host/init.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::testing_support {

std::unique_ptr<worker::LayerRunner> MakeRunner(const model::ModelSpec& model,
                                                const worker::BuiltinLayerOptions& options,
                                                worker::CpuDevice& device) {
  return std::make_unique<worker::LayerRunner>(
      model, worker::MakeBuiltinLayers(model, options, device), device);
}

AlignedFloats::AlignedFloats(int64_t count) : count_(count) {
  const Bytes size = Bytes(std::max<int64_t>(count, 1) * 4).AlignUp(kSlotAlignment);
  data_.reset(static_cast<float*>(std::aligned_alloc(kSlotAlignment, size.count())));
  std::memset(data_.get(), 0, size.count());
}

void AlignedFloats::Free::operator()(float* p) const { std::free(p); }

PlainTrainer::PlainTrainer(const model::ModelConfig& config, const job::JobSpec& job,
                           std::vector<model::LayerRange> groups, int optimizer_threads)
    : config_(config),
      model_(*job::ModelOf(config, job)),
      job_(job),
      groups_(std::move(groups)),
      layers_{.config = config, .tokens = job.sequence_length},
      runner_(MakeRunner(model_, layers_, device_)),
      replicas_(job.virtual_replicas > 0 ? job.virtual_replicas : job.AutoReplicas()),
      embedding_stash_(0),
      optimizer_threads_(optimizer_threads) {
  if (groups_.empty()) groups_ = {{0, model_.num_layers() - 1}};
  const int moments = job::MomentsOf(job);
  for (const model::ParamBlock& block : model_.blocks) {
    weights_.emplace_back(block.weight_bytes.count() / SizeOf(DType::kF32).count());
    masters_.emplace_back(block.has_masters ? block.elements() : 0);
    moments1_.emplace_back(moments > 0 ? block.elements() : 0);
    moments2_.emplace_back(moments > 1 ? block.elements() : 0);
  }
  for (const model::ParameterReference& reference : model_.references) {
    for (int replica = 0; replica < replicas_; ++replica) {
      gradients_.emplace_back(model_.blocks[reference.block].elements());
    }
  }
  const int64_t hidden = job.micro_batch_size * job.sequence_length * config.hidden_size;
  for (size_t g = 1; g < groups_.size(); ++g) {
    boundaries_.emplace_back(hidden);
    boundary_gradients_.emplace_back(hidden);
  }
  if (groups_.size() > 1) embedding_stash_ = AlignedFloats(hidden);
  losses_.resize(job.global_batch_size / job.micro_batch_size);
}

void PlainTrainer::set_padding_token(int64_t token) {
  layers_.padding_token = token;
  runner_ = MakeRunner(model_, layers_, device_);
}

void PlainTrainer::ComputePortably() {
  layers_.portable = true;
  runner_ = MakeRunner(model_, layers_, device_);
}

void PlainTrainer::InitializeRandom(uint64_t seed) {
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    for (const model::TensorSpec& tensor : model_.blocks[b].tensors) {
      worker::InitializeRange(tensor, static_cast<int>(b), seed, 0,
                              values(static_cast<int>(b), tensor));
    }
  }
  RoundWeights();
}

absl::Span<float> PlainTrainer::values(int block, const model::TensorSpec& tensor) {
  AlignedFloats& buffer = tensor.has_master() ? masters_[block] : weights_[block];
  const model::StoredAs& form = tensor.has_master() ? tensor.moment : tensor.weight;
  return buffer.span().subspan(form.offset.count() / SizeOf(DType::kF32).count(), tensor.elements);
}

void PlainTrainer::RoundWeights() {
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    worker::RoundMasters(model_.blocks[b], StateOf(b));
  }
}

worker::BlockState PlainTrainer::StateOf(size_t block) {
  const int moments = job::MomentsOf(job_);
  return {weights_[block].data(), moments > 0 ? moments1_[block].data() : nullptr,
          moments > 1 ? moments2_[block].data() : nullptr, masters_[block].data()};
}

worker::GroupBinding PlainTrainer::Bind(int group, int microbatch) const {
  worker::GroupBinding b;
  b.layers = groups_[group];
  b.samples = job_.micro_batch_size;
  const int share = static_cast<int>(losses_.size()) / replicas_;
  b.first_microbatch = microbatch % share == 0;
  b.last_microbatch = b.stores_gradients = (microbatch + 1) % share == 0;
  for (size_t reference = 0; reference < model_.references.size(); ++reference) {
    if (!b.layers.contains(model_.references[reference].layer)) continue;
    const size_t gradient = GradientIndex(static_cast<int>(reference), microbatch / share);
    b.references.push_back({static_cast<int>(reference),
                            weights_[model_.references[reference].block].address(),
                            gradients_[gradient].address()});
  }
  if (group > 0) b.input = boundaries_[group - 1].address();
  return b;
}

absl::Status PlainTrainer::RunMicrobatch(int index, const int32_t* tokens, const int32_t* labels,
                                         int64_t total_labels) {
  const int last = static_cast<int>(groups_.size()) - 1;
  for (int g = 0; g < last; ++g) {
    worker::GroupBinding b = Bind(g, index);
    b.batch = {worker::AddressOf(tokens), worker::AddressOf(labels)};
    if (b.layers.first == 0 && b.layers.last > 0) {
      b.outputs.push_back({1, embedding_stash_.address()});
    }
    b.outputs.push_back({b.layers.last + 1, boundaries_[g].address()});
    HARMONY_RETURN_IF_ERROR(runner_->RunForward(b));
  }
  for (int g = last; g >= 0; --g) {
    worker::GroupBinding b = Bind(g, index);
    b.batch = {worker::AddressOf(tokens), worker::AddressOf(labels)};
    if (g > 0) b.input_gradient = boundary_gradients_[g - 1].address();
    if (g == last) {
      b.loss = {worker::AddressOf(&losses_[index]), total_labels};
      HARMONY_RETURN_IF_ERROR(runner_->RunForwardBackward(b));
      continue;
    }
    if (g == 0) b.input = embedding_stash_.address();
    b.output_gradient = boundary_gradients_[g].address();
    HARMONY_RETURN_IF_ERROR(runner_->RunBackward(b));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> PlainTrainer::AccumulateGradients(absl::Span<const int32_t> tokens,
                                                         absl::Span<const int32_t> labels) {
  const int64_t total_labels =
      std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label >= 0; });
  const int64_t stride = job_.micro_batch_size * job_.sequence_length;
  for (size_t m = 0; m < losses_.size(); ++m) {
    HARMONY_RETURN_IF_ERROR(RunMicrobatch(static_cast<int>(m), tokens.data() + m * stride,
                                          labels.data() + m * stride, total_labels));
  }
  std::vector<double> losses;
  for (const command::LossSlot& slot : losses_) losses.push_back(slot.loss_sum);
  return model::SumOfMicrobatches(losses, replicas_) / static_cast<double>(total_labels);
}

absl::StatusOr<StepResult> PlainTrainer::Step(absl::Span<const int32_t> tokens,
                                              absl::Span<const int32_t> labels) {
  StepResult result;
  HARMONY_ASSIGN_OR_RETURN(result.loss, AccumulateGradients(tokens, labels));
  result.learning_rate = job::LearningRateAt(job_, step_);
  ++step_;
  std::vector<double> squares;
  for (const model::ParamBlock& block : model_.blocks) {
    squares.push_back(worker::BlockSquaredNorm(block, GradientOf(block), optimizer_threads_));
  }
  result.grad_norm = worker::GradientNorm(squares);
  Update(result);
  return result;
}

worker::BlockGradient PlainTrainer::GradientOf(const model::ParamBlock& block) const {
  worker::BlockGradient gradient;
  for (auto reference = block.references.rbegin(); reference != block.references.rend();
       ++reference) {
    for (int replica = 0; replica < replicas_; ++replica) {
      gradient.push_back(gradients_[GradientIndex(*reference, replica)].data());
    }
  }
  return gradient;
}

void PlainTrainer::Update(const StepResult& step) {
  worker::StepHyper hyper;
  hyper.step = step_;
  hyper.learning_rate = step.learning_rate;
  if (job_.max_grad_norm > 0) {
    hyper.clip_coefficient = worker::ClipCoefficient(step.grad_norm, job_.max_grad_norm);
  }
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    UpdateBlock(model_.blocks[b], worker::SettingsOf(job_), hyper, StateOf(b),
                GradientOf(model_.blocks[b]), optimizer_threads_);
  }
}

}  // namespace harmony::testing_support
