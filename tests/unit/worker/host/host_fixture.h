#pragma once

// A job on a tiny tied model in a segment of its own, for the tests of the host executor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_config.h"
#include "common/plan/arena_layout.h"
#include "common/plan/job_file.h"
#include "tests/unit/common/io/temp_dir.h"
#include "worker/host/host_executor.h"
#include "worker/optimizer/optimizer.h"

namespace harmony {

using testing::HasSubstr;
using Floats = std::vector<float>;

inline constexpr char kConfig[] =
    R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 20, "n_layer": 2,
    "n_head": 2, "n_positions": 32})";

// A job on a tiny tied model, its segment, and the parts of workers and swapper that a test needs:
// gradients and losses out of thin air.
class HostExecutorTest : public testing::Test {
 protected:
  HostExecutorTest() {
    std::filesystem::create_directories(dir_.File("model"));
    dir_.Write("model/config.json", kConfig);
    dir_.Write("model/tokenizer.json", "{\"a\": 1}");
    std::string text;
    for (int i = 0; i < 200; ++i) text.push_back(static_cast<char>(i * 7 % 256));
    job_.config_json = kConfig;
    job_.spec.model_name_or_path = dir_.File("model");
    job_.spec.data_path = dir_.Write("data", text);
    job_.spec.output_dir = dir_.File("out");
    job_.spec.sequence_length = 8;
    job_.spec.global_batch_size = 6;
    job_.spec.micro_batch_size = 2;
    job_.spec.max_steps = 4;
    job_.spec.learning_rate = 1e-2;
    job_.spec.lr_scheduler_type = ScheduleKind::kLinear;
    job_.spec.seed = 11;
    job_.model = BuildModelSpec(*ParseModelConfig(kConfig, "config.json"), 8);
    job_.plan.num_microbatches = 3;
    job_.plan.microbatch_size = 2;
    job_.plan.sequence_length = 8;
    job_.plan.backward_groups = {{{0, job_.model.num_layers() - 1}, 0}};
    job_.plan.update = UpdateMode::kDeferred;
    job_.threads = 2;
  }

  int moments() const { return MomentsOf(job_.spec.optim); }

  // A fresh segment with the job in it, and an executor.
  void Start() {
    executor_.reset();
    job_.plan.optimizer_moments = moments();
    job_.job_json = JobSpecToJson(job_.spec);
    layout_ = std::make_unique<ArenaLayout>(job_.model, job_.plan);
    table_ = std::make_unique<ObjectTableLayout>(job_.model, job_.plan.num_microbatches);
    SegmentJob allocation;
    allocation.id = "t";
    allocation.record_count = table_->size();
    allocation.cursor_count = CursorCount(job_.model);
    allocation.extent = layout_->end();
    allocation.persistent = layout_->persistent_bytes();
    auto segment = Segment::Create(allocation.extent + MiB(8));
    ASSERT_TRUE(segment.ok()) << segment.status();
    segment_ = std::make_unique<Segment>(*std::move(segment));
    ASSERT_TRUE(segment_->AllocateJob(allocation).ok());
    Attach();
  }
  // A new host worker on the same segment.
  void Attach() {
    auto executor = HostExecutor::Create(*segment_, job_);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }

  absl::Status Run(HostTaskKind kind, int64_t step, int block = -1) {
    const int parity = static_cast<int>(step & 1);
    HostTask task;
    task.kind = kind;
    task.block = block;
    if (kind == HostTaskKind::kLoadBatch) task.offset = layout_->Batch(parity);
    if (kind == HostTaskKind::kStepScalars) task.offset = layout_->Scalars(parity);
    if (kind == HostTaskKind::kNorm) task.offset = layout_->Norm(block);
    if (block >= 0) {
      const std::vector<int>& uses = job_.model.blocks[static_cast<size_t>(block)].uses;
      for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
        task.gradient_records.push_back(table_->IndexOf({ObjectKind::kGradient, *use, 0}));
      }
    }
    CommandHeader header;
    header.step = step;
    return executor_->Execute(task, header);
  }
  int num_blocks() const { return static_cast<int>(job_.model.blocks.size()); }

  // What workers and swapper would have left of a step.
  // Gaps between tensors are zero.
  static Floats GradientOf(const ParamBlock& block, int64_t step, int use) {
    Floats values(static_cast<size_t>(block.elements()));
    for (const TensorSpec& tensor : block.tensors) {
      for (int64_t i = tensor.weight.first_element();
           i < tensor.weight.first_element() + tensor.elements; ++i) {
        values[static_cast<size_t>(i)] =
            PhiloxNormal(static_cast<uint64_t>(100 + step), static_cast<uint64_t>(i),
                         static_cast<uint64_t>(use))[0];
      }
    }
    return values;
  }
  void CommitGradientsAndLosses(int64_t step) {
    for (int use = 0; use < static_cast<int>(job_.model.uses.size()); ++use) {
      const ParamBlock& block =
          job_.model.blocks[static_cast<size_t>(job_.model.uses[static_cast<size_t>(use)].block)];
      const Floats values = GradientOf(block, step, use);
      std::memcpy(segment_->Arena(layout_->Gradient(use)), values.data(),
                  values.size() * sizeof(float));
      Publish({ObjectKind::kGradient, use, 0}, layout_->Gradient(use), block.weight_bytes, step);
    }
    LossSlot* slots = reinterpret_cast<LossSlot*>(segment_->Arena(layout_->Loss()));
    for (int m = 0; m < 3; ++m) slots[m] = {1.5 * m + static_cast<double>(step), 16, {}};
    Publish({ObjectKind::kLoss, 0, 0}, layout_->Loss(), Bytes(3 * sizeof(LossSlot)), step);
  }
  void Publish(const ObjectKey& key, Bytes offset, Bytes size, int64_t step) {
    segment_->Publish(table_->IndexOf(key),
                      {key, offset, size, static_cast<uint64_t>(step + 1), ObjectState::kClean});
  }

  void RunStep(int64_t step) {
    CommitGradientsAndLosses(step);
    ASSERT_TRUE(Run(HostTaskKind::kStepScalars, step).ok());
    if (job_.plan.clip) {
      for (int b = 0; b < num_blocks(); ++b) ASSERT_TRUE(Run(HostTaskKind::kNorm, step, b).ok());
      ASSERT_TRUE(Run(HostTaskKind::kClip, step).ok());
    }
    for (int b = 0; b < num_blocks(); ++b) {
      const absl::Status status = Run(HostTaskKind::kUpdate, step, b);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  Floats Persistent() const {
    const float* data = reinterpret_cast<const float*>(segment_->Arena(Bytes(0)));
    return Floats(data, data + layout_->persistent_bytes().count() / 4);
  }
  float* BlockData(ObjectKind kind, int block) const {
    return reinterpret_cast<float*>(
        segment_->Arena(PersistentOffset(job_.model, {kind, block, 0})));
  }
  ObjectView Record(const ObjectKey& key) const {
    return *segment_->ReadRecord(table_->IndexOf(key));
  }
  StepScalars Scalars(int64_t step) const {
    const ObjectView view = Record({ObjectKind::kStepScalars, static_cast<int>(step & 1), 0});
    StepScalars scalars;
    std::memcpy(&scalars, segment_->Arena(view.offset), sizeof(scalars));
    return scalars;
  }

  TempDir dir_;
  HostJob job_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<ArenaLayout> layout_;
  std::unique_ptr<ObjectTableLayout> table_;
  std::unique_ptr<HostExecutor> executor_;
};

}  // namespace harmony
