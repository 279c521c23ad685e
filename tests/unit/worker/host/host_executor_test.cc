#include "worker/host/host_executor.h"

#include <cmath>
#include <limits>

#include "common/model/families/causal_lm.h"
#include "tests/support/update_block.h"
#include "tests/unit/worker/host/host_fixture.h"
#include "worker/host/init.h"

namespace harmony::worker {
namespace {

TEST_F(HostExecutorTest, RandomInitialisationIsCommittedAndRepeatable) {
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  const Floats first = Persistent();
  for (int b = 0; b < num_blocks(); ++b) {
    for (const command::ObjectKind kind :
         {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
          command::ObjectKind::kMoment2}) {
      EXPECT_EQ(Record({kind, b, 0}).state, command::ObjectState::kClean);
      EXPECT_EQ(Record({kind, b, 0}).version, 0u);
    }
    for (const model::TensorSpec& tensor : job_.model.blocks[static_cast<size_t>(b)].tensors) {
      Floats expected(static_cast<size_t>(tensor.elements));
      InitializeRange(tensor, b, 11, 0, absl::MakeSpan(expected));
      EXPECT_EQ(
          std::memcmp(expected.data(),
                      BlockData(command::ObjectKind::kParameter, b) + tensor.weight.first_element(),
                      expected.size() * sizeof(float)),
          0)
          << tensor.name;
    }
  }
  // Cut short: one record is missing, some data is gone.
  segment_->SetFree(table_->IndexOf({command::ObjectKind::kParameter, 1, 0}));
  BlockData(command::ObjectKind::kParameter, 0)[3] = 99;
  Attach();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Persistent(), first);
}

TEST(InitTest, AnySplitGivesTheSameValues) {
  model::TensorSpec tensor;
  tensor.elements = 1001;
  tensor.init_position = 64;
  tensor.init_std = 0.02;
  Floats whole(1001), parts(1001);
  InitializeRange(tensor, 2, 7, 0, absl::MakeSpan(whole));
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
    ASSERT_TRUE(Run(command::HostTaskKind::kLoadBatch, step).ok());
    const int parity = static_cast<int>(step & 1);
    const command::ObjectView view = Record({command::ObjectKind::kBatch, parity, 0});
    EXPECT_EQ(view.version, static_cast<uint64_t>(step + 1));
    EXPECT_EQ(view.size, Bytes(6 * 8 * 4).AlignUp(kSlotAlignment) * 2);
    for (int m = 0; m < 3; ++m) {
      const auto* tokens = reinterpret_cast<const int32_t*>(
          segment_->Arena(layout_->Input(parity, model::kTokenIds, m)));
      const auto* labels = reinterpret_cast<const int32_t*>(
          segment_->Arena(layout_->Input(parity, model::kLabels, m)));
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
                      public testing::WithParamInterface<std::pair<job::OptimizerKind, bool>> {};

TEST_P(HostStepsTest, GiveTheBitsOfThePlainOptimizer) {
  job_.spec.optim = GetParam().first;
  job_.plan.clip = GetParam().second;
  job_.spec.max_grad_norm = job_.plan.clip ? 0.5 : 0;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  Floats expected = Persistent();
  ThreadPool pool(1);
  for (int64_t step = 0; step < 4; ++step) {
    RunStep(step);
    std::vector<Floats> gradients;
    for (size_t reference = 0; reference < job_.model.references.size(); ++reference) {
      const size_t block = static_cast<size_t>(job_.model.references[reference].block);
      gradients.push_back(GradientOf(job_.model.blocks[block], step, static_cast<int>(reference)));
    }
    const auto gradient_of = [&](const model::ParamBlock& block) {
      BlockGradient g{gradients[static_cast<size_t>(block.references.back())].data()};
      if (block.references.size() > 1)
        g.push_back(gradients[static_cast<size_t>(block.references[0])].data());
      return g;
    };
    std::vector<double> squares;
    for (const model::ParamBlock& block : job_.model.blocks) {
      squares.push_back(BlockSquaredNorm(block, gradient_of(block), pool));
    }
    const command::StepScalars scalars = Scalars(step);
    EXPECT_EQ(scalars.step, step);
    EXPECT_EQ(scalars.loss_sum, 4.5 + 3.0 * static_cast<double>(step));
    EXPECT_EQ(scalars.label_count, 48);
    EXPECT_EQ(scalars.learning_rate, job::LearningRateAt(job_.spec, step));
    StepHyper hyper{step + 1, job::LearningRateAt(job_.spec, step), 1.0};
    if (job_.plan.clip) {
      EXPECT_EQ(scalars.grad_norm, GradientNorm(squares));
      hyper.clip_coefficient = ClipCoefficient(GradientNorm(squares), 0.5);
      EXPECT_LT(hyper.clip_coefficient, 1.0);
    }
    const auto at = [&](command::ObjectKind kind, int block) -> float* {
      if (kind != command::ObjectKind::kParameter && moments() == 0) return nullptr;
      return expected.data() + command::PersistentOffset(job_.model, {kind, block, 0}).count() / 4;
    };
    for (int b = 0; b < num_blocks(); ++b) {
      const model::ParamBlock& block = job_.model.blocks[static_cast<size_t>(b)];
      testing_support::UpdateBlock(
          block, SettingsOf(job_.spec), hyper,
          {at(command::ObjectKind::kParameter, b), at(command::ObjectKind::kMoment1, b),
           at(command::ObjectKind::kMoment2, b)},
          gradient_of(block), pool, Isa::kScalar);
    }
    ASSERT_EQ(std::memcmp(expected.data(), Persistent().data(), expected.size() * sizeof(float)), 0)
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, HostStepsTest,
                         testing::Values(std::pair{job::OptimizerKind::kAdamW, false},
                                         std::pair{job::OptimizerKind::kAdamW, true},
                                         std::pair{job::OptimizerKind::kSgd, false},
                                         std::pair{job::OptimizerKind::kSgd, true}));

TEST_F(HostExecutorTest, TasksOfAStepMayBeRepeated) {
  job_.plan.clip = true;
  job_.spec.max_grad_norm = 0.5;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  const Floats once = Persistent();
  RunStep(0);
  EXPECT_EQ(Persistent(), once);
}

TEST_F(HostExecutorTest, UpdatesWaitForScalarsAndCoefficient) {
  job_.plan.clip = true;
  job_.spec.max_grad_norm = 0.5;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  EXPECT_EQ(Run(command::HostTaskKind::kUpdate, 0, 0).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Run(command::HostTaskKind::kClip, 0).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Run(command::HostTaskKind::kStepScalars, 0).ok());
  EXPECT_EQ(Run(command::HostTaskKind::kClip, 0).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status status = Run(command::HostTaskKind::kUpdate, 0, 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("before the clip coefficient"));
}

TEST_F(HostExecutorTest, ALossThatIsNotFiniteIsNotCommitted) {
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  reinterpret_cast<command::LossSlot*>(segment_->Arena(layout_->Loss()))[1].loss_sum =
      std::numeric_limits<double>::quiet_NaN();
  const absl::Status status = Run(command::HostTaskKind::kStepScalars, 0);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("loss of step 1, microbatch 1 is not finite"));
  EXPECT_EQ(Record({command::ObjectKind::kStepScalars, 0, 0}).state, command::ObjectState::kFree);
}

TEST_F(HostExecutorTest, AGradientThatIsNotFiniteIsNamed) {
  job_.plan.clip = true;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  CommitGradientsAndLosses(0);
  const int block = num_blocks() - 1;
  const int reference = job_.model.blocks[static_cast<size_t>(block)].references[0];
  reinterpret_cast<float*>(segment_->Arena(layout_->Gradient(reference)))[0] =
      std::numeric_limits<float>::infinity();
  const absl::Status status = Run(command::HostTaskKind::kNorm, 0, block);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("'", job_.model.blocks[static_cast<size_t>(block)].name,
                                     "' of step 1 is not finite")));
}

TEST_F(HostExecutorTest, MissingInputsAreNamed) {
  Start();
  const HostJob good = job_;
  job_.spec.data_path = dir_.File("nowhere");
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(), absl::StatusCode::kNotFound);
  job_ = good;
  job_.spec.init = job::InitMode::kPretrained;  // there are no weights in that directory
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(), absl::StatusCode::kNotFound);
  job_ = good;
  ASSERT_TRUE(segment_->ReleaseJob().ok());
  EXPECT_FALSE(HostExecutor::Create(*segment_, job_).ok());
}

}  // namespace
}  // namespace harmony::worker
