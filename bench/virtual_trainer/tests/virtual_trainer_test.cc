// The trainer with virtualised memory against the plain one and against the model that drives it.

#include "bench/virtual_trainer/virtual_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/virtual_trainer/device_pages.h"
#include "bench/virtual_trainer/lane_threads.h"
#include "common/job/parameter_rules.h"
#include "tests/support/plain_trainer.h"

namespace harmony::bench {
namespace {

using baselines::Baseline;
using baselines::LayerCosts;
using baselines::Outcome;
using baselines::Recompute;
using baselines::Setting;
using baselines::StayPlace;
using baselines::Traffic;
using ::testing::HasSubstr;

constexpr int kSteps = 3;
constexpr uint64_t kSeed = 11;

model::ModelConfig SmallGpt2() {
  model::ModelConfig c;
  c.family = model::Family::kGpt2;
  c.model_type = "gpt2";
  c.vocab_size = 97;
  c.hidden_size = 64;
  c.num_layers = 4;
  c.num_heads = c.num_kv_heads = 4;
  c.head_dim = 16;
  c.intermediate_size = 256;
  c.max_position_embeddings = 32;
  return c;
}

job::JobSpec SmallJob(int devices) {
  job::JobSpec job;
  job.sequence_length = 16;
  job.global_batch_size = 16;
  job.micro_batch_size = 2;
  job.learning_rate = 1e-2;
  job.max_steps = kSteps;
  job.virtual_replicas = devices;
  return job;
}

std::vector<Batch> SomeBatches(const model::ModelConfig& config, const job::JobSpec& job) {
  std::vector<Batch> batches(kSteps + 1);
  uint32_t random = 7;
  const auto token = [&] {
    random = random * 1664525 + 1013904223;
    return static_cast<int32_t>((random >> 8) % static_cast<uint32_t>(config.vocab_size));
  };
  for (Batch& batch : batches) {
    for (int64_t i = 0; i < job.global_batch_size * job.sequence_length; ++i) {
      batch.tokens.push_back(token());
      batch.labels.push_back(token());
    }
  }
  return batches;
}

const Baseline& Named(const std::string& name) {
  for (const Baseline& baseline : baselines::AllBaselines()) {
    if (baseline.name == name) return baseline;
  }
  ADD_FAILURE() << name;
  return baselines::AllBaselines().front();
}

class VirtualTrainerTest : public ::testing::Test {
 protected:
  // Devices of so much memory beside the margin that each task has in its workspace.
  void Use(int devices, Bytes beside_margin) {
    job_ = SmallJob(devices);
    model_ = *job::ModelOf(config_, job_);
    machine_.devices = *plan::ParseDevices("sim*" + std::to_string(devices) +
                                           ":mem=64MiB,flops=1G,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s");
    for (plan::DeviceSpec& device : machine_.devices) device.memory = MiB(4) + beside_margin;
    factory_ = dispatch::AnalyticCostFactory(model_, machine_.devices);
    costs_.emplace(model_, job_, machine_, factory_, job_.micro_batch_size);
  }

  absl::StatusOr<VirtualRun> Train(const Baseline& baseline, Setting setting) {
    setting.steps = kSteps;
    setting.microbatches = static_cast<int>(job_.global_batch_size / job_.micro_batch_size) /
                           (baseline.data_parallel ? static_cast<int>(machine_.devices.size()) : 1);
    setting.paging.page = kPage;
    auto trainer = VirtualTrainer::Create(
        {.config = &config_, .costs = &*costs_, .baseline = &baseline, .setting = setting});
    if (!trainer.ok()) return trainer.status();
    (*trainer)->InitializeRandom(kSeed);
    return (*trainer)->Run(SomeBatches(config_, job_), /*paced=*/false);
  }

  std::vector<double> PlainLosses(int replicas) {
    job::JobSpec job = job_;
    job.virtual_replicas = replicas;
    testing_support::PlainTrainer plain(config_, job);
    plain.InitializeRandom(kSeed);
    std::vector<double> losses;
    const std::vector<Batch> batches = SomeBatches(config_, job_);
    for (int step = 0; step < kSteps; ++step) {
      losses.push_back(plain.Step(batches[step].tokens, batches[step].labels)->loss);
    }
    return losses;
  }

  static std::vector<double> LossesOf(const VirtualRun& run) {
    std::vector<double> losses;
    for (const VirtualStep& step : run.steps) losses.push_back(step.loss);
    return losses;
  }

  static void ExpectBytesOfModel(const VirtualRun& run) {
    for (const VirtualStep& step : run.steps) {
      EXPECT_EQ(step.moved.h2d, step.modelled.h2d);
      EXPECT_EQ(step.moved.d2h, step.modelled.d2h);
      EXPECT_EQ(step.moved.p2p, step.modelled.p2p);
    }
  }

  const model::ModelConfig config_ = SmallGpt2();
  job::JobSpec job_;
  model::ModelSpec model_;
  plan::MachineSpec machine_;
  dispatch::CostFactory factory_;
  std::optional<LayerCosts> costs_;
};

TEST_F(VirtualTrainerTest, DataParallelTrainsAsThePlainTrainerAndMovesWhatTheModelSays) {
  for (int devices : {1, 2, 4}) {
    const std::string name = devices == 2 ? "dp-swap, recompute" : "dp-swap";
    SCOPED_TRACE(absl::StrCat(name, ", ", devices, " devices"));
    Use(devices, KiB(1536));
    const Baseline& baseline = Named(name);
    const absl::StatusOr<VirtualRun> run = Train(
        baseline,
        {.recompute = baseline.recompute.front(), .paging = {.writes_back_ahead = devices == 4}});
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(LossesOf(*run), PlainLosses(devices));
    ExpectBytesOfModel(*run);
    // There is pressure: weights and moments come back each step, and go.
    const baselines::StepBytes& last = run->steps.back().moved;
    EXPECT_GT(last.h2d[static_cast<size_t>(Traffic::kOptimizerState)], 0);
    EXPECT_GT(last.d2h[static_cast<size_t>(Traffic::kWeights)], 0);
  }
}

TEST_F(VirtualTrainerTest, PipelineWithAFlushTrainsAsThePlainTrainer) {
  for (int devices : {2, 4}) {
    const Recompute recompute = devices == 2 ? Recompute::kNothing : Recompute::kStage;
    SCOPED_TRACE(absl::StrCat(devices, " devices, recomputes ", ToString(recompute)));
    Use(devices, KiB(1024));
    const absl::StatusOr<VirtualRun> run =
        Train(Named("1f1b-flush-swap"), {.recompute = recompute});
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(LossesOf(*run), PlainLosses(/*replicas=*/1));
    ExpectBytesOfModel(*run);
  }
}

// Its backwards run from the last microbatch to the first, so gradients are added up in another
// order.
TEST_F(VirtualTrainerTest, GpipeTrainsAsThePlainTrainerButForTheOrderOfSums) {
  Use(2, KiB(1024));
  const absl::StatusOr<VirtualRun> run =
      Train(Named("gpipe-swap, recompute"), {.recompute = Recompute::kStage});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(LossesOf(*run),
              ::testing::Pointwise(::testing::DoubleNear(1e-5), PlainLosses(/*replicas=*/1)));
  ExpectBytesOfModel(*run);
}

TEST_F(VirtualTrainerTest, WithoutAFlushGradientsAreOfWeightsThatAreAStepOld) {
  Use(2, KiB(1536));
  const absl::StatusOr<VirtualRun> run =
      Train(Named("1f1b-swap"), {.recompute = Recompute::kLayers});
  ASSERT_TRUE(run.ok()) << run.status();
  ExpectBytesOfModel(*run);
  const std::vector<double> losses = LossesOf(*run), plain = PlainLosses(/*replicas=*/1);
  EXPECT_EQ(losses[0], plain[0]);
  EXPECT_NE(losses[1], plain[1]);  // the second step has the first one's weights
}

TEST_F(VirtualTrainerTest, RefusesWhatDoesNotFit) {
  Use(1, KiB(64));
  const absl::StatusOr<VirtualRun> run =
      Train(Named("dp-swap"), {.recompute = Recompute::kNothing});
  EXPECT_TRUE(absl::IsResourceExhausted(run.status())) << run.status();
  EXPECT_THAT(std::string(run.status().message()), HasSubstr("device 0 lacks"));
}

TEST(DevicePagesTest, KnowWhoHasLostAPageToAnother) {
  auto pages = *DevicePages::Create(Bytes(2 * kPage));
  const StayPlace both{0, {{Bytes(kPage), Bytes(kPage)}, {Bytes(0), Bytes(kPage)}}};
  const StayPlace second{0, {{Bytes(kPage), Bytes(kPage)}}};
  pages->Begin(1, both);
  EXPECT_TRUE(pages->CheckResident(1, both).ok());
  pages->Begin(2, second);
  EXPECT_TRUE(pages->CheckResident(2, second).ok());
  EXPECT_FALSE(pages->CheckResident(1, both).ok());
}

TEST(DevicePagesTest, ShowScatteredPagesInOnePiece) {
  auto pages = *DevicePages::Create(Bytes(2 * kPage));
  const StayPlace place{0, {{Bytes(kPage), Bytes(kPage)}, {Bytes(0), Bytes(kPage)}}};
  std::vector<std::byte> contents(kPage + 8, std::byte{1});
  contents.back() = std::byte{9};
  EXPECT_EQ(pages->Write(place, contents), Bytes(kPage + 8));
  {
    const auto view = PageView::Map({{pages.get(), &place}});
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->part(0)[kPage + 7], std::byte{9});
    view->part(0)[0] = std::byte{5};
  }
  std::vector<std::byte> read(kPage + 8);
  EXPECT_EQ(pages->Read(place, absl::MakeSpan(read)), Bytes(kPage + 8));
  EXPECT_EQ(read.front(), std::byte{5});
  EXPECT_EQ(read.back(), std::byte{9});
}

TEST(LaneThreadsTest, FirstErrorEndsAllLanes) {
  baselines::Timeline timeline(2, [] {
    plan::LaneResources resources;
    const int lanes = command::LaneTable(2).size();
    for (int lane = 0; lane < lanes; ++lane) resources.of_lane.push_back(lane);
    resources.capacity.assign(static_cast<size_t>(lanes), 1);
    return resources;
  }());
  timeline.BeginStep();
  const auto first = timeline.Add({command::LaneKind::kCompute, 0}, Nanos(), {});
  timeline.Add({command::LaneKind::kCompute, 1}, Nanos(), {first});
  const absl::StatusOr<LaneTimes> times =
      RunOnThreads(timeline, {.paced = false, .group_of = {}}, [&](baselines::Operation operation) {
        return operation == first ? absl::InternalError("it broke") : absl::OkStatus();
      });
  EXPECT_EQ(times.status().message(), "it broke");
}

}  // namespace
}  // namespace harmony::bench
