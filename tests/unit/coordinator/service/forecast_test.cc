#include "coordinator/service/forecast.h"

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "coordinator/core/analytic_costs.h"
#include "tests/unit/coordinator/core/small_case.h"

namespace harmony {
namespace {

TEST(ForecastTest, OneDeviceBoundByItsArithmetic) {
  const ModelSpec model = SmallModel(2);
  Plan plan = SmallPlan(model, 1);
  plan.num_microbatches = 8;
  plan.arena_dynamic = ArenaLayout(model, plan).dynamic_bytes();
  const std::vector<DeviceSpec> devices =
      *ParseDevices("sim:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s");
  const AnalyticCosts costs(model, plan, devices);
  const absl::StatusOr<Forecast> forecast = MakeForecast(model, plan, costs, 1);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  double flops = 0;  // groups of one layer: the head runs fused, the others twice and recompute
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    const bool head = layer + 1 == model.num_layers();
    flops += ForwardFlops(model, layer, 1) * (head ? 3 : 4);
  }
  EXPECT_NEAR(forecast->step_seconds, flops * 8 / 1e6, forecast->step_seconds * 0.02);
  const MinimalSwap minimal = ComputeMinimalSwap(model, plan);
  EXPECT_EQ(forecast->swap[static_cast<int>(TrafficClass::kWeights)], minimal.weights.count());
  EXPECT_EQ(forecast->swap[static_cast<int>(TrafficClass::kGradients)], minimal.gradients.count());
  EXPECT_EQ(forecast->swap[static_cast<int>(TrafficClass::kStash)], minimal.stash.count());
  ASSERT_EQ(forecast->device_peak.size(), 1u);
  EXPECT_GT(forecast->device_peak[0], WorkspacePeak(model, WorkspaceOf::kBackward, {1, 1}, 1, 1));
  EXPECT_LE(forecast->device_peak[0], plan.devices[0].resident + MiB(1));
}

TEST(ForecastTest, BothH2DLanesShareTheirLink) {
  const ModelSpec model = SmallModel(2);
  const Plan plan = SmallPlan(model, 1);
  const std::vector<DeviceSpec> devices =
      *ParseDevices("sim:mem=1MiB,flops=1T,h2d=100kB/s,d2h=1GB/s");
  const absl::StatusOr<Forecast> forecast =
      MakeForecast(model, plan, AnalyticCosts(model, plan, devices), 1);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  int64_t in = forecast->swap[static_cast<int>(TrafficClass::kWeights)] +
               forecast->swap[static_cast<int>(TrafficClass::kTokens)];
  // Every boundary that goes out for a later group comes in again.
  in += forecast->swap[static_cast<int>(TrafficClass::kStash)];
  EXPECT_GE(forecast->step_seconds, static_cast<double>(in) / 1e5 * 0.9);
}

TEST(ForecastTest, PacedMeansArithmeticAndAllLinks) {
  EXPECT_TRUE(AllPaced(*ParseDevices("sim:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s")));
  EXPECT_FALSE(AllPaced(*ParseDevices("sim*2:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s")));
  EXPECT_FALSE(AllPaced(*ParseDevices("sim:mem=1MiB,h2d=1GB/s,d2h=1GB/s")));
}

}  // namespace
}  // namespace harmony
