#include "coordinator/service/replan/plan_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/io/temp_dir.h"
#include "tests/unit/coordinator/service/fake_member.h"
#include "tests/unit/coordinator/service/small_setup.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Of a run that has no processes, and a plan with a group for each layer: others are faster.
class PlanChangesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    machine_.devices =
        *plan::ParseDevices("sim*2:mem=8MiB,flops=10M,h2d=1MB/s,d2h=1MB/s,p2p=1MB/s");
    machine_.host_memory = MiB(64);
    store::JobRecord record;
    record.output_dir = dir_.path();
    record.max_steps = 1'000'000;
    record.plan = "the plan in force";
    record_ = *registry_.Add(record);
  }
  void Begin(job::ReplanMode mode, bool predicted = true) {
    RunSetup setup = SmallSetup(/*devices=*/2, /*blocks=*/4);
    setup.spec.replan = mode;
    if (predicted) setup.forecast.emplace();
    run_ = std::make_unique<JobRun>(std::move(setup), machine_, &segment_, &members_, &clock_,
                                    RunEvents());
    changes_.Begin(run_.get(), record_);
  }
  // What the run's job's log has, once the search has been answered.
  std::vector<std::string> Searched() {
    mailbox_.Run(std::chrono::milliseconds(1), [&] {
      if (said().size() > 1) mailbox_.Close();
    });
    return said();
  }
  const std::vector<std::string>& said() { return registry_.Messages(*record_); }
  HostLimits Limits() const {
    HostLimits limits;
    limits.arena = machine_.host_memory;
    return limits;
  }

  io::TempDir dir_;
  plan::MachineSpec machine_;
  JobRegistry registry_ = *JobRegistry::Open(*store::JobStore::Open(dir_.path()));
  ipc::Segment segment_ = *ipc::Segment::Create(MiB(16));
  FakeClock clock_;
  Members members_{2, {[](const Member&) {}, [](const Member&) {}}};
  Mailbox mailbox_;
  store::JobRecord* record_ = nullptr;
  std::unique_ptr<JobRun> run_;
  bool may_change_ = true;
  PlanChanges changes_{&machine_, &registry_, &mailbox_, [this] { return Limits(); },
                       [this] { return may_change_; }};
};

TEST_F(PlanChangesTest, WithoutAPredictionThereIsNothingToGoBy) {
  Begin(job::ReplanMode::kSuggest, /*predicted=*/false);
  EXPECT_THAT(said(), ElementsAre(StartsWith("replan: has nothing to go by")));
}

TEST_F(PlanChangesTest, ARunThatIsToStopIsNotSearchedFor) {
  Begin(job::ReplanMode::kAuto);
  may_change_ = false;
  changes_.OnDrift();
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(PlanChangesTest, AFasterPlanIsSuggested) {
  Begin(job::ReplanMode::kSuggest);
  changes_.OnDrift();
  changes_.OnDrift();  // one is under way
  EXPECT_THAT(Searched(), ElementsAre(StartsWith("replan: searching by measured times: "),
                                      StartsWith("replan: a faster plan is known: ")));
  EXPECT_TRUE(std::filesystem::exists(dir_.File("suggested-plan.json")));
  EXPECT_TRUE(run_->steps().suggestion().has_value());
  EXPECT_EQ(record_->replan, ReplanStateToText(run_->steps().replan()));
  EXPECT_EQ(record_->stop, store::StopIntent::kNone);
}

TEST_F(PlanChangesTest, WhatIsFoundIsTakenWhenTheRunHasStoppedForIt) {
  Begin(job::ReplanMode::kAuto);
  changes_.OnDrift();
  EXPECT_THAT(Searched().back(),
              StartsWith("replan: changing the plan after the step in flight: "));
  EXPECT_EQ(record_->stop, store::StopIntent::kReplan);
  EXPECT_EQ(record_->plan, "the plan in force");
  record_->completed_steps = 7;
  changes_.TakeFound();
  EXPECT_EQ(said().back(), "replan: going on with the other plan after step 7");
  EXPECT_EQ(record_->stop, store::StopIntent::kNone);
  EXPECT_NE(record_->plan, "the plan in force");
  const absl::StatusOr<ReplanState> state = ReplanStateFromText(record_->replan, "the record");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->changes, 1);
  EXPECT_EQ(state->changed_at, 7);
}

// The search goes on, and its answer is for nobody: not for the next run either.
TEST_F(PlanChangesTest, WhatIsFoundForARunThatIsNoMoreIsDropped) {
  Begin(job::ReplanMode::kAuto);
  changes_.OnDrift();
  changes_.Forget();
  run_.reset();
  Begin(job::ReplanMode::kAuto);
  // A second search begins when the first has been answered.
  mailbox_.Run(std::chrono::milliseconds(1), [&] {
    changes_.OnDrift();
    if (said().size() > 1) mailbox_.Close();
  });
  EXPECT_THAT(said(), ElementsAre(HasSubstr("searching"), HasSubstr("searching")));
  EXPECT_EQ(record_->stop, store::StopIntent::kNone);
}

}  // namespace
}  // namespace harmony::service
