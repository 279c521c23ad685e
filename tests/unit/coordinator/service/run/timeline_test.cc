#include "coordinator/service/run/timeline.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "harmony/v1/coordinator.pb.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::service {
namespace {

// Steps `first` to `last` of a run of six that went exactly as the plan says, an hour after the
// clock began.
RecordedTimeline AsPlanned(int64_t first, int64_t last) {
  RecordedTimeline recorded;
  recorded.job_id = "job-1";
  recorded.model = dispatch::SmallModel();
  recorded.plan = dispatch::SmallPlan(recorded.model, 2);
  recorded.end_step = 6;
  recorded.completed_steps = last + 1;
  recorded.lanes.resize(command::LaneTable(2).size());
  const dispatch::AnalyticCosts costs(recorded.model, recorded.plan, recorded.devices);
  sim::SimOptions options;
  options.end_step = 6;
  options.keep_timeline = true;
  const sim::SimResult run = sim::Simulate(recorded.model, recorded.plan, costs, options);
  EXPECT_TRUE(run.status.ok()) << run.status;
  for (const sim::ExecutedCommand& entry : run.timeline) {
    const CommandLabel label = LabelOf(entry.command);
    if (label.step < first || label.step > last) continue;
    MeasuredCommand done;
    done.label = label;
    done.start = Seconds(3600) + entry.begin;
    done.end = Seconds(3600) + entry.end;
    recorded.lanes[entry.lane].push_back(done);
  }
  return recorded;
}

TEST(TimelineTest, ThePlanOfTheSameStepsStandsBesideThem) {
  v1::Timeline timeline;
  FillTimeline(AsPlanned(2, 3), &timeline);
  EXPECT_EQ(timeline.why_not_planned(), "");
  EXPECT_EQ(timeline.aligned_at_step(), 2);
  ASSERT_GT(timeline.events_size(), 40);
  ASSERT_EQ(timeline.planned_size(), timeline.events_size());
  for (int i = 0; i < timeline.events_size(); ++i) {
    const v1::TimelineEvent &measured = timeline.events(i), &planned = timeline.planned(i);
    EXPECT_EQ(measured.lane(), planned.lane());
    EXPECT_EQ(measured.name(), planned.name());
    EXPECT_EQ(measured.step(), planned.step());
    EXPECT_EQ(measured.start_ns(), planned.start_ns()) << measured.lane() << " " << planned.name();
    EXPECT_EQ(measured.end_ns(), planned.end_ns());
  }
}

TEST(TimelineTest, EveryLaneHasItsPlace) {
  v1::Timeline timeline;
  FillTimeline(AsPlanned(2, 2), &timeline);
  std::set<std::string> places;
  for (const v1::TimelineEvent& event : timeline.planned()) {
    places.insert(absl::StrCat(event.device(), " ", event.queue()));
  }
  for (const char* place : {"0 compute", "0 h2d weights", "0 h2d activations", "0 d2h", "0 p2p out",
                            "1 compute", "-1 updates", "-1 data and checkpoints"}) {
    EXPECT_EQ(places.count(place), 1u) << place;
  }
}

TEST(TimelineTest, WithoutATaskThereIsNoPlan) {
  RecordedTimeline recorded = AsPlanned(2, 3);
  recorded.DropBefore(4);
  v1::Timeline timeline;
  FillTimeline(recorded, &timeline);
  EXPECT_EQ(timeline.events_size(), 0);
  EXPECT_EQ(timeline.planned_size(), 0);
  EXPECT_NE(timeline.why_not_planned(), "");
}

}  // namespace
}  // namespace harmony::service
