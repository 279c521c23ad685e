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
#include "common/job/job_file.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_config.h"
#include "common/plan/arena_layout.h"
#include "tests/unit/common/io/temp_dir.h"
#include "worker/host/host_executor.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::worker {

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
    job_.spec.lr_scheduler_type = job::ScheduleKind::kLinear;
    job_.spec.seed = 11;
    job_.model = model::BuildModelSpec(*model::ParseModelConfig(kConfig, "config.json"), 8);
    job_.plan.num_microbatches = 3;
    job_.plan.microbatch_size = 2;
    job_.plan.sequence_length = 8;
    job_.plan.backward_groups = {{{0, job_.model.num_layers() - 1}, 0}};
    job_.plan.update = job::UpdateMode::kDeferred;
    job_.threads = 2;
  }

  int moments() const { return job::MomentsOf(job_.spec); }

  // A fresh segment with the job in it, and an executor.
  void Start() {
    executor_.reset();
    job_.plan.optimizer_moments = moments();
    job_.job_json = job::JobSpecToJson(job_.spec);
    layout_ = std::make_unique<plan::ArenaLayout>(job_.model, job_.plan);
    table_ = std::make_unique<command::ObjectTableLayout>(job_.model, job_.plan.num_microbatches);
    ipc::SegmentJob allocation;
    allocation.id = "t";
    allocation.record_count = table_->size();
    allocation.cursor_count = ipc::CursorCount(job_.model);
    allocation.extent = layout_->end();
    allocation.persistent = layout_->persistent_bytes();
    auto segment = ipc::Segment::Create(allocation.extent + MiB(8));
    ASSERT_TRUE(segment.ok()) << segment.status();
    segment_ = std::make_unique<ipc::Segment>(*std::move(segment));
    ASSERT_TRUE(segment_->AllocateJob(allocation).ok());
    Attach();
  }
  // A new host worker on the same segment.
  void Attach() {
    auto executor = HostExecutor::Create(*segment_, job_);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }

  absl::Status Run(command::HostTaskKind kind, int64_t step, int block = -1) {
    const int parity = static_cast<int>(step & 1);
    command::HostTask task;
    task.kind = kind;
    task.block = block;
    if (kind == command::HostTaskKind::kLoadBatch) task.offset = layout_->Batch(parity);
    if (kind == command::HostTaskKind::kStepScalars) task.offset = layout_->Scalars(parity);
    if (kind == command::HostTaskKind::kNorm) task.offset = layout_->Norm(block);
    if (block >= 0) {
      const std::vector<int>& references = job_.model.blocks[static_cast<size_t>(block)].references;
      for (auto reference = references.rbegin(); reference != references.rend(); ++reference) {
        task.gradient_records.push_back(
            table_->IndexOf({command::ObjectKind::kGradient, *reference, 0}));
      }
    }
    command::CommandHeader header;
    header.step = step;
    return executor_->Execute(task, header);
  }
  int num_blocks() const { return static_cast<int>(job_.model.blocks.size()); }

  // What workers and swapper would have left of a step.
  // Gaps between tensors are zero.
  static Floats GradientOf(const model::ParamBlock& block, int64_t step, int reference) {
    Floats values(static_cast<size_t>(block.elements()));
    for (const model::TensorSpec& tensor : block.tensors) {
      for (int64_t i = tensor.weight.first_element();
           i < tensor.weight.first_element() + tensor.elements; ++i) {
        values[static_cast<size_t>(i)] =
            PhiloxNormal(static_cast<uint64_t>(100 + step), static_cast<uint64_t>(i),
                         static_cast<uint64_t>(reference))[0];
      }
    }
    return values;
  }
  void CommitGradientsAndLosses(int64_t step) {
    for (int reference = 0; reference < static_cast<int>(job_.model.references.size());
         ++reference) {
      const model::ParamBlock& block = job_.model.blocks[static_cast<size_t>(
          job_.model.references[static_cast<size_t>(reference)].block)];
      const Floats values = GradientOf(block, step, reference);
      std::memcpy(segment_->Arena(layout_->Gradient(reference)), values.data(),
                  values.size() * sizeof(float));
      Publish({command::ObjectKind::kGradient, reference, 0}, layout_->Gradient(reference),
              block.weight_bytes, step);
    }
    command::LossSlot* slots =
        reinterpret_cast<command::LossSlot*>(segment_->Arena(layout_->Loss()));
    for (int m = 0; m < 3; ++m) slots[m] = {1.5 * m + static_cast<double>(step), 16, {}};
    Publish({command::ObjectKind::kLoss, 0, 0}, layout_->Loss(),
            Bytes(3 * sizeof(command::LossSlot)), step);
  }
  void Publish(const command::ObjectKey& key, Bytes offset, Bytes size, int64_t step) {
    segment_->Publish(table_->IndexOf(key), {key, offset, size, static_cast<uint64_t>(step + 1),
                                             command::ObjectState::kClean});
  }

  void RunStep(int64_t step) {
    CommitGradientsAndLosses(step);
    ASSERT_TRUE(Run(command::HostTaskKind::kStepScalars, step).ok());
    if (job_.plan.clip) {
      for (int b = 0; b < num_blocks(); ++b)
        ASSERT_TRUE(Run(command::HostTaskKind::kNorm, step, b).ok());
      ASSERT_TRUE(Run(command::HostTaskKind::kClip, step).ok());
    }
    for (int b = 0; b < num_blocks(); ++b) {
      const absl::Status status = Run(command::HostTaskKind::kUpdate, step, b);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  Floats Persistent() const {
    const float* data = reinterpret_cast<const float*>(segment_->Arena(Bytes(0)));
    return Floats(data, data + layout_->persistent_bytes().count() / 4);
  }
  float* BlockData(command::ObjectKind kind, int block) const {
    return reinterpret_cast<float*>(
        segment_->Arena(command::PersistentOffset(job_.model, {kind, block, 0})));
  }
  command::ObjectView Record(const command::ObjectKey& key) const {
    return *segment_->ReadRecord(table_->IndexOf(key));
  }
  command::StepScalars Scalars(int64_t step) const {
    const command::ObjectView view =
        Record({command::ObjectKind::kStepScalars, static_cast<int>(step & 1), 0});
    command::StepScalars scalars;
    std::memcpy(&scalars, segment_->Arena(view.offset), sizeof(scalars));
    return scalars;
  }

  io::TempDir dir_;
  HostJob job_;
  std::unique_ptr<ipc::Segment> segment_;
  std::unique_ptr<plan::ArenaLayout> layout_;
  std::unique_ptr<command::ObjectTableLayout> table_;
  std::unique_ptr<HostExecutor> executor_;
};

}  // namespace harmony::worker
