#include "worker/host/host_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/hf_directory.h"
#include "common/plan/arena_layout.h"
#include "common/plan/job_file.h"
#include "tests/unit/common/io/temp_dir.h"
#include "worker/host/init.h"
#include "worker/optimizer/optimizer.h"

namespace harmony {
namespace {

using testing::HasSubstr;
using Floats = std::vector<float>;

constexpr char kConfig[] = R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 20, "n_layer": 2,
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
    job_.model = BuildModelSpec(*ParseModelConfig(kConfig, "config.json"));
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
    Floats values(static_cast<size_t>(block.elements));
    for (const TensorSpec& tensor : block.tensors) {
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
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
      Publish({ObjectKind::kGradient, use, 0}, layout_->Gradient(use), block.size(), step);
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

TEST_F(HostExecutorTest, RandomInitialisationIsCommittedAndRepeatable) {
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  const Floats first = Persistent();
  for (int b = 0; b < num_blocks(); ++b) {
    for (const ObjectKind kind :
         {ObjectKind::kParameter, ObjectKind::kMoment1, ObjectKind::kMoment2}) {
      EXPECT_EQ(Record({kind, b, 0}).state, ObjectState::kClean);
      EXPECT_EQ(Record({kind, b, 0}).version, 0u);
    }
    for (const TensorSpec& tensor : job_.model.blocks[static_cast<size_t>(b)].tensors) {
      Floats expected(static_cast<size_t>(tensor.elements));
      InitializeTensor(tensor, b, 11, absl::MakeSpan(expected));
      EXPECT_EQ(std::memcmp(expected.data(), BlockData(ObjectKind::kParameter, b) + tensor.offset,
                            expected.size() * sizeof(float)),
                0)
          << tensor.name;
    }
  }
  // Cut short: one record is missing, some data is gone.
  segment_->SetFree(table_->IndexOf({ObjectKind::kParameter, 1, 0}));
  BlockData(ObjectKind::kParameter, 0)[3] = 99;
  Attach();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Persistent(), first);
}

TEST(InitTest, AnySplitGivesTheSameValues) {
  TensorSpec tensor;
  tensor.elements = 1001;
  tensor.offset = 64;
  tensor.init_std = 0.02;
  Floats whole(1001), parts(1001);
  InitializeTensor(tensor, 2, 7, absl::MakeSpan(whole));
  const absl::Span<float> out = absl::MakeSpan(parts);
  InitializeRange(tensor, 2, 7, 0, out.subspan(0, 333));
  InitializeRange(tensor, 2, 7, 333, out.subspan(333, 1));
  InitializeRange(tensor, 2, 7, 334, out.subspan(334));
  EXPECT_EQ(whole, parts);
  double sum = 0, squares = 0;
  for (const float x : whole) {
    sum += x;
    squares += double{x} * x;
  }
  EXPECT_NEAR(sum / 1001, 0, 0.003);
  EXPECT_NEAR(std::sqrt(squares / 1001), 0.02, 0.002);
}

TEST_F(HostExecutorTest, BatchesHoldTokensAndNextTokens) {
  Start();
  for (int64_t step = 0; step < 5; ++step) {  // 24 sequences: the fifth batch wraps around
    ASSERT_TRUE(Run(HostTaskKind::kLoadBatch, step).ok());
    const int parity = static_cast<int>(step & 1);
    const ObjectView view = Record({ObjectKind::kBatch, parity, 0});
    EXPECT_EQ(view.version, static_cast<uint64_t>(step + 1));
    EXPECT_EQ(view.size, Bytes(2 * 6 * 8 * 4));
    for (int m = 0; m < 3; ++m) {
      const auto* tokens =
          reinterpret_cast<const int32_t*>(segment_->Arena(layout_->Tokens(parity, m)));
      const auto* labels =
          reinterpret_cast<const int32_t*>(segment_->Arena(layout_->Labels(parity, m)));
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t sequence = (step * 6 + m * 2 + i / 8) % 24;
        const int64_t position = sequence * 8 + i % 8;
        ASSERT_EQ(tokens[i], position * 7 % 256) << step << " " << m << " " << i;
        ASSERT_EQ(labels[i], (position + 1) * 7 % 256);
      }
    }
  }
}

// Four steps, with the optimizer alone beside them on memory of the test's own.
class HostStepsTest : public HostExecutorTest,
                      public testing::WithParamInterface<std::pair<OptimizerKind, bool>> {};

TEST_P(HostStepsTest, GiveTheBitsOfThePlainOptimizer) {
  job_.spec.optim = GetParam().first;
  job_.plan.clip = GetParam().second;
  job_.spec.max_grad_norm = job_.plan.clip ? 0.5 : 0;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  Floats expected = Persistent();
  ThreadPool pool(1);
  for (int64_t step = 0; step < 4; ++step) {
    RunStep(step);
    std::vector<Floats> gradients;
    for (size_t use = 0; use < job_.model.uses.size(); ++use) {
      const size_t block = static_cast<size_t>(job_.model.uses[use].block);
      gradients.push_back(GradientOf(job_.model.blocks[block], step, static_cast<int>(use)));
    }
    const auto gradient_of = [&](const ParamBlock& block) {
      BlockGradient g{gradients[static_cast<size_t>(block.uses.back())].data(), nullptr};
      if (block.uses.size() > 1) g.first_use = gradients[static_cast<size_t>(block.uses[0])].data();
      return g;
    };
    std::vector<double> squares;
    for (const ParamBlock& block : job_.model.blocks) {
      squares.push_back(BlockSquaredNorm(block, gradient_of(block), pool));
    }
    const StepScalars scalars = Scalars(step);
    EXPECT_EQ(scalars.step, step);
    EXPECT_EQ(scalars.loss_sum, 4.5 + 3.0 * static_cast<double>(step));
    EXPECT_EQ(scalars.label_count, 48);
    EXPECT_EQ(scalars.learning_rate, LearningRateAt(job_.spec, step));
    StepHyper hyper{step + 1, LearningRateAt(job_.spec, step), 1.0};
    if (job_.plan.clip) {
      EXPECT_EQ(scalars.grad_norm, GradientNorm(squares));
      hyper.clip_coefficient = ClipCoefficient(GradientNorm(squares), 0.5);
      EXPECT_LT(hyper.clip_coefficient, 1.0);
    }
    const auto at = [&](ObjectKind kind, int block) -> float* {
      if (kind != ObjectKind::kParameter && moments() == 0) return nullptr;
      return expected.data() + PersistentOffset(job_.model, {kind, block, 0}).count() / 4;
    };
    for (int b = 0; b < num_blocks(); ++b) {
      const ParamBlock& block = job_.model.blocks[static_cast<size_t>(b)];
      UpdateBlock(
          block, SettingsOf(job_.spec), hyper,
          {at(ObjectKind::kParameter, b), at(ObjectKind::kMoment1, b), at(ObjectKind::kMoment2, b)},
          gradient_of(block), pool, Isa::kScalar);
    }
    ASSERT_EQ(std::memcmp(expected.data(), Persistent().data(), expected.size() * sizeof(float)), 0)
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, HostStepsTest,
                         testing::Values(std::pair{OptimizerKind::kAdamW, false},
                                         std::pair{OptimizerKind::kAdamW, true},
                                         std::pair{OptimizerKind::kSgd, false},
                                         std::pair{OptimizerKind::kSgd, true}));

TEST_F(HostExecutorTest, TasksOfAStepMayBeRepeated) {
  job_.plan.clip = true;
  job_.spec.max_grad_norm = 0.5;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  const Floats once = Persistent();
  RunStep(0);
  EXPECT_EQ(Persistent(), once);
}

TEST_F(HostExecutorTest, UpdatesWaitForScalarsAndCoefficient) {
  job_.plan.clip = true;
  job_.spec.max_grad_norm = 0.5;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  EXPECT_EQ(Run(HostTaskKind::kUpdate, 0, 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Run(HostTaskKind::kClip, 0).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Run(HostTaskKind::kStepScalars, 0).ok());
  EXPECT_EQ(Run(HostTaskKind::kClip, 0).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status status = Run(HostTaskKind::kUpdate, 0, 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("before the clip coefficient"));
}

TEST_F(HostExecutorTest, ALossThatIsNotFiniteIsNotCommitted) {
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  reinterpret_cast<LossSlot*>(segment_->Arena(layout_->Loss()))[1].loss_sum =
      std::numeric_limits<double>::quiet_NaN();
  const absl::Status status = Run(HostTaskKind::kStepScalars, 0);
  EXPECT_TRUE(IsNonFiniteResult(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("loss of step 1, microbatch 1"));
  EXPECT_EQ(Record({ObjectKind::kStepScalars, 0, 0}).state, ObjectState::kFree);
}

TEST_F(HostExecutorTest, AGradientThatIsNotFiniteIsNamed) {
  job_.plan.clip = true;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  const int block = num_blocks() - 1;
  const int use = job_.model.blocks[static_cast<size_t>(block)].uses[0];
  reinterpret_cast<float*>(segment_->Arena(layout_->Gradient(use)))[0] =
      std::numeric_limits<float>::infinity();
  const absl::Status status = Run(HostTaskKind::kNorm, 0, block);
  EXPECT_TRUE(IsNonFiniteResult(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(job_.model.blocks[static_cast<size_t>(block)].name));
}

TEST_F(HostExecutorTest, AResumedRunGoesOnBitIdentically) {
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  for (int64_t step = 0; step < 2; ++step) RunStep(step);
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, 1).ok());
  for (int64_t step = 2; step < 4; ++step) RunStep(step);
  const Floats undisturbed = Persistent();

  job_.resume_checkpoint = dir_.File("out/checkpoint-2");
  job_.first_step = 2;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 2).ok());
  EXPECT_EQ(Record({ObjectKind::kParameter, 0, 0}).version, 2u);
  for (int64_t step = 2; step < 4; ++step) RunStep(step);
  EXPECT_EQ(Persistent(), undisturbed);

  const auto manifest = VerifyCheckpoint(job_.resume_checkpoint);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 2);
  EXPECT_EQ(manifest->micro_batch_size, 2);
  const auto details = CheckpointDetailsFromJson(manifest->details_json, "manifest");
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->data_position, 12);
  EXPECT_EQ(details->source_directory, dir_.File("model"));
  EXPECT_EQ(details->job_json, job_.job_json);

  job_.plan.microbatch_size = 3;
  job_.plan.num_microbatches = 2;
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "another microbatch size would give another result";
}

TEST_F(HostExecutorTest, ADamagedCheckpointIsRefused) {
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, 0).ok());
  const std::string path = dir_.File("out/checkpoint-1/optimizer.safetensors");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put(77);
  file.close();
  job_.resume_checkpoint = dir_.File("out/checkpoint-1");
  job_.first_step = 1;
  Start();
  const absl::Status status = Run(HostTaskKind::kInitialize, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer.safetensors"));
  EXPECT_EQ(Record({ObjectKind::kParameter, 0, 0}).state, ObjectState::kFree);
}

TEST_F(HostExecutorTest, OldCheckpointsAndLeftOversAreRemoved) {
  job_.spec.save_total_limit = 2;
  std::filesystem::create_directories(dir_.File("out/checkpoint-9.partial-1-0"));
  std::filesystem::create_directories(dir_.File("out/checkpoint-99"));  // of no use: no manifest
  Start();
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-9.partial-1-0")));
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  for (int64_t step = 0; step < 3; ++step) {
    RunStep(step);
    ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, step).ok());
    ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, step).ok()) << "again, after a kill";
    EXPECT_TRUE(VerifyCheckpoint(dir_.File(absl::StrCat("out/checkpoint-", step + 1))).ok());
  }
  EXPECT_LE(ListCheckpoints(dir_.File("out")).size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-1")));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/final"))) << "not finished";
}

// Host workers are killed at random moments of initialisation and of a checkpoint; the next one
// repeats the task. The older checkpoint stays valid all the time.
TEST_F(HostExecutorTest, KilledHostWorkersRepeatTheirTask) {
  Start();
  CounterRandom random(3);
  const auto run_and_kill = [&](HostTaskKind kind, int64_t step) {
    executor_.reset();  // its threads, which a child would not have
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Attach();
      _exit(Run(kind, step).ok() ? 0 : 1);
    }
    const Nanos moment =
        MonotonicClock().Now() + Nanos(static_cast<int64_t>(random.Below(20'000'000)));
    int status = 0;
    while (MonotonicClock().Now() < moment) {
      if (waitpid(child, &status, WNOHANG) == child) {
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
      }
      sched_yield();
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  for (int i = 0; i < 10; ++i) run_and_kill(HostTaskKind::kInitialize, 0);
  Attach();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  const Floats killed = Persistent();
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Persistent(), killed);

  RunStep(0);
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, 0).ok());
  RunStep(1);
  for (int i = 0; i < 20; ++i) {
    run_and_kill(HostTaskKind::kCheckpoint, 1);
    EXPECT_TRUE(VerifyCheckpoint(dir_.File("out/checkpoint-1")).ok());
    const std::string newest = dir_.File("out/checkpoint-2");
    EXPECT_TRUE(!std::filesystem::exists(newest) || VerifyCheckpoint(newest).ok());
  }
  Attach();
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, 1).ok());
  EXPECT_TRUE(VerifyCheckpoint(dir_.File("out/checkpoint-2")).ok());
  for (const auto& entry : std::filesystem::directory_iterator(dir_.File("out"))) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("partial")));
  }
}

TEST_F(HostExecutorTest, ACheckpointNeedsCommittedParameters) {
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Run(HostTaskKind::kCheckpoint, 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-1")));
}

TEST_F(HostExecutorTest, TheFinalModelCanBeTrainedFurther) {
  job_.spec.max_steps = 1;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, 0).ok());
  EXPECT_EQ(dir_.Read("out/final/config.json"), kConfig);
  EXPECT_EQ(dir_.Read("out/final/tokenizer.json"), "{\"a\": 1}");
  const Bytes parameters = PersistentBytes(job_.model, 0);
  Floats trained = Persistent();
  trained.resize(static_cast<size_t>(parameters.count() / 4));

  job_.spec.model_name_or_path = dir_.File("out/final");
  job_.spec.init = InitMode::kPretrained;
  job_.spec.output_dir = dir_.File("out2");
  job_.spec.max_steps = 0;
  Start();
  ASSERT_TRUE(Run(HostTaskKind::kInitialize, 0).ok());
  Floats loaded = Persistent();
  loaded.resize(trained.size());
  EXPECT_EQ(loaded, trained);
  // Nothing trained: what comes out is what went in.
  ASSERT_TRUE(Run(HostTaskKind::kCheckpoint, -1).ok());
  EXPECT_EQ(dir_.Read("out2/final/model.safetensors"), dir_.Read("out/final/model.safetensors"));
}

TEST_F(HostExecutorTest, MissingInputsAreNamed) {
  Start();
  const HostJob good = job_;
  job_.spec.data_path = dir_.File("nowhere");
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(), absl::StatusCode::kNotFound);
  job_ = good;
  job_.spec.init = InitMode::kPretrained;  // there are no weights in that directory
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(), absl::StatusCode::kNotFound);
  job_ = good;
  ASSERT_TRUE(segment_->ReleaseJob().ok());
  EXPECT_FALSE(HostExecutor::Create(*segment_, job_).ok());
}

}  // namespace
}  // namespace harmony
