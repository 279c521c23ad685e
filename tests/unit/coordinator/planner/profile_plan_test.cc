// Plans by profiles, as a busy machine measures them. A failure prints its seed.

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/profile/plausible.h"
#include "common/runtime/run_both.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"

namespace harmony::planner {
namespace {

// What took longer by a factor of up to four, each for itself.
profile::Profile Disturbed(profile::Profile profile, uint64_t seed) {
  CounterRandom random(seed, 0);
  const auto factor = [&] { return std::pow(4.0, random.NextDouble()); };
  for (profile::DeviceProfile& device : profile.devices) {
    device.together = random.NextDouble() * 8;
    for (profile::LinkProfile* link : {&device.h2d, &device.d2h, &*device.p2p}) {
      link->together = profile::Exactly(link->together.median / factor());
    }
    for (profile::LayerProfile& layer : device.layers) {
      for (profile::LayerSizeProfile& size : layer.sizes) {
        if (size.forward) size.forward = profile::Exactly(size.forward->median * factor());
        size.backward = profile::Exactly(size.backward.median * factor());
        if (size.backward_inner) {
          size.backward_inner = profile::Exactly(size.backward_inner->median * factor());
        }
      }
    }
  }
  profile.host.update_rate = profile::Exactly(profile.host.update_rate.median / factor());
  return profile::Plausible(std::move(profile));
}

// The times of a disturbed profile.
PlannerOptions ByProfile(const model::ModelSpec& model, const job::JobSpec& job,
                         const plan::MachineSpec& machine, uint64_t seed) {
  const auto profile = std::make_shared<const profile::Profile>(
      Disturbed(testing_support::SampleProfile(model, job, machine.devices), seed));
  PlannerOptions options;
  options.costs = dispatch::ProfiledCostFactory(profile, model);
  return options;
}

TEST(ProfilePlanTest, IsByItsOwnTimesNeverSlowerThanThePlanWithoutAProfile) {
  const model::ModelSpec model = Gpt2();
  const job::JobSpec job = Gpt2Job();
  const plan::MachineSpec machine = Machine("sim*3:mem=512MiB");
  const absl::StatusOr<PlanResult> none = PlanQuickly(model, job, machine);
  ASSERT_TRUE(none.ok()) << none.status();
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    PlannerOptions options = ByProfile(model, job, machine, seed);
    options.replicas = none->plan.replicas;
    const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine, options);
    ASSERT_TRUE(planned.ok()) << planned.status() << " seed " << seed;
    const absl::StatusOr<Estimate> without =
        EvaluatePlan(model, none->plan, *options.costs(none->plan));
    ASSERT_TRUE(without.ok()) << without.status() << " seed " << seed;
    EXPECT_LE(planned->estimate.step, without->step) << "seed " << seed;
  }
}

TEST(ProfilePlanTest, SaysWhatThePlanWithoutTheProfileWouldTake) {
  const model::ModelSpec model = Gpt2();
  const job::JobSpec job = Gpt2Job();
  const plan::MachineSpec machine = Machine("sim*3:mem=512MiB");
  PlannerOptions options = ByProfile(model, job, machine, 1);
  options.explain = true;
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine, options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(ExplainPlan(model, *planned, machine), ::testing::HasSubstr("without the profile"));
}

TEST(ProfilePlanTest, IsTheSameWhereBothSearchesRunAtOnce) {
  const model::ModelSpec model = Gpt2();
  const plan::MachineSpec machine = Machine("sim*3:mem=512MiB");
  for (const int64_t size : {2, 0}) {  // and auto
    job::JobSpec job = Gpt2Job();
    job.micro_batch_size = size;
    PlannerOptions options = ByProfile(model, job, machine, 1);
    options.explain = true;
    const absl::StatusOr<PlanResult> in_turn = PlanQuickly(model, job, machine, options);
    ASSERT_TRUE(in_turn.ok()) << in_turn.status();
    options.run_both = runtime::RunBoth;
    const absl::StatusOr<PlanResult> at_once = PlanQuickly(model, job, machine, options);
    ASSERT_TRUE(at_once.ok()) << at_once.status();
    EXPECT_EQ(PlanToJson(model, *at_once, machine), PlanToJson(model, *in_turn, machine));
  }
}

}  // namespace
}  // namespace harmony::planner
