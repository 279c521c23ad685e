#include "coordinator/service/run/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/io/temp_dir.h"
#include "tests/unit/coordinator/service/small_setup.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kPredicted = 1;  // seconds a step

// Steps that complete without any process: the test writes the scalars that a host worker would.
class StepLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setup_.spec.output_dir = dir_.File("");
    setup_.spec.max_steps = 1000;
    setup_.spec.logging_steps = 2;
    setup_.spec.replan = job::ReplanMode::kOff;
    setup_.forecast.emplace();
    setup_.forecast->step_seconds = kPredicted;
    const plan::ArenaLayout arena(setup_.model, setup_.plan);
    ipc::SegmentJob job;
    job.id = setup_.id;
    job.record_count = table().size();
    job.extent = arena.end();
    job.persistent = arena.persistent_bytes();
    ASSERT_TRUE(segment_.AllocateJob(job).ok());
    Begin();
  }
  void Begin() {
    log_.reset();
    StepEvents events;
    events.step_completed = [this](const StepMetrics& step) { completed_.push_back(step.step); };
    events.report = [this](const std::string& line) { said_.push_back(line); };
    events.drifts = [this] { ++searches_; };
    events.change_judged = [this] { ++judged_; };
    log_ = std::make_unique<StepLog>(setup_, &segment_, &monitor_, &clock_, std::move(events));
    ASSERT_TRUE(log_->Open().ok());
    log_->BeginGeneration();
  }
  command::ObjectTableLayout table() const {
    return {setup_.model, setup_.plan.num_microbatches, setup_.plan.replicas};
  }
  // As a host worker leaves them; those of the step before the last go.
  void WriteScalars(int64_t step) {
    const plan::ArenaLayout arena(setup_.model, setup_.plan);
    const auto parity = static_cast<int32_t>(step % 2);
    command::StepScalars scalars;
    scalars.step = step;
    scalars.loss_sum = 8 * LossOf(step);
    scalars.label_count = 8;
    scalars.tokens = 16;
    std::memcpy(segment_.Arena(arena.Scalars(parity)), &scalars, sizeof(scalars));
    const command::ObjectKey key{command::ObjectKind::kStepScalars, parity, 0};
    segment_.Publish(table().IndexOf(key),
                     {key, arena.Scalars(parity), Bytes(sizeof(scalars)),
                      static_cast<uint64_t>(step) + 1, command::ObjectState::kClean});
  }
  static double LossOf(int64_t step) { return 100.0 - static_cast<double>(step); }
  void Complete(int64_t end_step) {
    RunReadings run;
    run.completed_steps = end_step;
    run.generation = 3;
    run.peak_bytes = {4096};
    log_->OnCompleted(end_step, run);
  }
  // The next steps, each of which takes so long.
  void Train(int64_t steps, double seconds) {
    for (const int64_t end = log_->written_steps() + steps; log_->written_steps() < end;) {
      const int64_t step = log_->written_steps();
      WriteScalars(step);
      clock_.now += Nanos::FromSeconds(seconds);
      Complete(step + 1);
    }
  }
  std::vector<nlohmann::json> Lines() {
    std::vector<nlohmann::json> lines;
    std::ifstream file(dir_.File("metrics.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  io::TempDir dir_;
  RunSetup setup_ = SmallSetup();
  ipc::Segment segment_ = *ipc::Segment::Create(MiB(16));
  LaneMonitor monitor_{1, 100};
  FakeClock clock_;
  std::unique_ptr<StepLog> log_;
  std::vector<int64_t> completed_;
  std::vector<std::string> said_;
  int searches_ = 0, judged_ = 0;
};

TEST_F(StepLogTest, EveryStepIsToldAndThoseThatAreLoggedHaveALine) {
  Train(4, 2.0);
  EXPECT_THAT(completed_, ElementsAre(1, 2, 3, 4));
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 2);
  EXPECT_EQ(lines[1]["step"], 4);
  EXPECT_EQ(lines[1]["loss"], LossOf(3));
  EXPECT_EQ(lines[1]["seconds"], 2.0);
  EXPECT_EQ(lines[1]["tokens_per_second"], 8.0);
  EXPECT_EQ(lines[1]["predicted_seconds"], kPredicted);
  EXPECT_EQ(lines[1]["peak_device_bytes"], std::vector<int64_t>{4096});
  EXPECT_EQ(lines[1]["generation"], 3);
  ASSERT_TRUE(log_->last_step().has_value());
  EXPECT_EQ(log_->last_step()->step, 4);
  EXPECT_EQ(log_->MedianSecondsPerStep(), 2.0);
}

// A coordinator that was away finds the scalars of the last two steps.
TEST_F(StepLogTest, ScalarsThatAreGoneAreMissedOnlyWhereALineIsDue) {
  WriteScalars(2);
  WriteScalars(3);
  clock_.now += Seconds(1);
  Complete(3);
  clock_.now += Seconds(1);
  Complete(4);
  EXPECT_THAT(said_,
              ElementsAre("no metrics of step 2: its scalars are gone (version 4 is there)"));
  EXPECT_THAT(completed_, ElementsAre(3, 4));
  EXPECT_EQ(log_->steps_seen(), 2);
  EXPECT_EQ(log_->written_steps(), 4);
}

// Told of late, a step has taken what its last update says.
TEST_F(StepLogTest, AStepEndsWithItsLastUpdate) {
  const Nanos begin = clock_.now;
  const int lane = monitor_.table().IndexOf({command::LaneKind::kHostCompute, 0});
  command::Command update;
  update.header.lane = static_cast<uint32_t>(lane);
  update.header.signal_value = 1;
  command::HostTask task;
  task.kind = command::HostTaskKind::kUpdate;
  update.body = task;
  monitor_.BeginGeneration(1, begin);
  monitor_.OnIssued(update, Nanos(), begin);
  monitor_.OnProgress(lane, 1, {{1, begin, begin + Seconds(2), begin + Seconds(3)}},
                      begin + Seconds(9));
  WriteScalars(0);
  clock_.now = begin + Seconds(9);
  Complete(1);
  EXPECT_EQ(log_->last_step()->seconds, 3.0);
}

TEST_F(StepLogTest, StepsThatDriftAreToldOfAndSearchedForAfterAWhile) {
  Train(1, 60.0);  // the first of a generation counts for nothing
  Train(DriftMonitor::kSteps - 1, 2.0);
  EXPECT_THAT(said_, IsEmpty());
  Train(1, 2.0);
  EXPECT_THAT(said_, ElementsAre("steps drift from what the plan says: 2 s in the median of the "
                                 "last 5, 1 s predicted (+100%); a plan by the times that this run "
                                 "measures: replan: suggest in the job"));
  EXPECT_EQ(log_->drift(), 1.0);
  EXPECT_EQ(searches_, 1);
  log_->OnSearched(6, std::nullopt, dispatch::CostScales(), std::nullopt);  // found nothing
  Train(kStepsBetweenSearches - 1, 2.0);
  EXPECT_EQ(searches_, 1);
  Train(1, 2.0);
  EXPECT_EQ(searches_, 2);
}

TEST_F(StepLogTest, AChangeOfPlanIsJudgedByTheStepsAfterIt) {
  setup_.replan.changes = 1;
  setup_.replan.seconds_before = 3;
  Begin();
  Train(kStepsToJudge, 1.0);
  EXPECT_EQ(judged_, 0);
  Train(1, 1.0);
  EXPECT_EQ(judged_, 1);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("replan: ")));
  EXPECT_FALSE(log_->replan().in_vain);
  Train(10, 1.0);
  EXPECT_EQ(judged_, 1);
}

TEST_F(StepLogTest, StepsAreHeldAgainstWhatASearchFound) {
  Train(10, 2.0);
  Forecast now;
  now.step_seconds = 2;
  log_->OnSearched(10, now, dispatch::CostScales(), Suggestion{1.5, 2});
  EXPECT_EQ(log_->replan().step, 10);
  EXPECT_EQ(log_->drift(), 0);
  EXPECT_EQ(log_->forecast()->step_seconds, 2);
  Train(10, 2.0);
  EXPECT_EQ(log_->drift(), 0);
  const nlohmann::json last = Lines().back();
  EXPECT_EQ(last["predicted_seconds"], 2.0);
  EXPECT_EQ(last["replan"]["predicted_seconds"], 1.5);
  EXPECT_EQ(said_.size(), 1u) << "the drift before";
  EXPECT_THAT(said_.front(), HasSubstr("steps drift"));
}

TEST_F(StepLogTest, NothingIsWrittenAfterItWasClosed) {
  Train(2, 1.0);
  log_->Close();
  EXPECT_TRUE(log_->complete());
  WriteScalars(2);
  WriteScalars(3);
  clock_.now += Seconds(1);
  Complete(4);
  EXPECT_EQ(Lines().size(), 1u);
  EXPECT_EQ(log_->written_steps(), 2);
  EXPECT_THAT(completed_, ElementsAre(1, 2));
}

}  // namespace
}  // namespace harmony::service
