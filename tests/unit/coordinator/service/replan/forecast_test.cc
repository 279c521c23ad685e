#include "coordinator/service/replan/forecast.h"

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::service {
namespace {

TEST(ForecastTest, OneDeviceBoundByItsArithmetic) {
  const model::ModelSpec model = dispatch::SmallModel(2);
  plan::Plan plan = dispatch::SmallPlan(model, 1);
  plan.num_microbatches = 8;
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  const std::vector<plan::DeviceSpec> devices =
      *plan::ParseDevices("sim:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s");
  const dispatch::AnalyticCosts costs(model, plan, devices);
  const absl::StatusOr<Forecast> forecast = MakeForecast(model, plan, costs, 1);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  double flops = 0;  // groups of one layer: the head runs fused, the others twice and recompute
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    const bool head = layer + 1 == model.num_layers();
    flops += model::ForwardFlops(model, layer, 1) * (head ? 3 : 4);
  }
  EXPECT_NEAR(forecast->step_seconds, flops * 8 / 1e6, forecast->step_seconds * 0.02);
  const plan::MinimalSwap minimal = plan::ComputeMinimalSwap(model, plan);
  EXPECT_EQ(forecast->swap[static_cast<int>(command::TrafficClass::kWeights)],
            minimal.weights.count());
  EXPECT_EQ(forecast->swap[static_cast<int>(command::TrafficClass::kGradients)],
            minimal.gradients.count());
  EXPECT_EQ(forecast->swap[static_cast<int>(command::TrafficClass::kStash)], minimal.stash.count());
  ASSERT_EQ(forecast->device_peak.size(), 1u);
  EXPECT_GT(forecast->device_peak[0],
            model::WorkspacePeak(model, model::WorkspaceOf::kBackward, {1, 1}, 1, 1));
  EXPECT_LE(forecast->device_peak[0], plan.devices[0].resident + MiB(1));
}

TEST(ForecastTest, BothH2DLanesShareTheirLink) {
  const model::ModelSpec model = dispatch::SmallModel(2);
  const plan::Plan plan = dispatch::SmallPlan(model, 1);
  const std::vector<plan::DeviceSpec> devices =
      *plan::ParseDevices("sim:mem=1MiB,flops=1T,h2d=100kB/s,d2h=1GB/s");
  const absl::StatusOr<Forecast> forecast =
      MakeForecast(model, plan, dispatch::AnalyticCosts(model, plan, devices), 1);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  int64_t in = forecast->swap[static_cast<int>(command::TrafficClass::kWeights)] +
               forecast->swap[static_cast<int>(command::TrafficClass::kTokens)];
  // Every boundary that goes out for a later group comes in again.
  in += forecast->swap[static_cast<int>(command::TrafficClass::kStash)];
  EXPECT_GE(forecast->step_seconds, static_cast<double>(in) / 1e5 * 0.9);
}

}  // namespace
}  // namespace harmony::service
