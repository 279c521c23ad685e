#include "client/progress/view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/progress/chrome_trace.h"

namespace harmony {
namespace {

TEST(LoggingSteps, ComesFromTheFileAndIsOverridden) {
  EXPECT_EQ(LoggingStepsOf("max_steps: 7\n", {}), 1);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 10\n", {}), 10);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 10\n", {"max_steps=1", "logging_steps=4"}), 4);
  EXPECT_EQ(LoggingStepsOf("logging_steps: [many\n", {}), 1);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 0\n", {}), 1);
}

TEST(ChromeTrace, HasARowForEachLaneAndTimesFromTheFirstEvent) {
  v1::Timeline timeline;
  auto add = [&timeline](const char* lane, const char* name, int64_t start, int64_t end) {
    v1::TimelineEvent* event = timeline.add_events();
    event->set_lane(lane);
    event->set_name(name);
    event->set_start_ns(start);
    event->set_end_ns(end);
  };
  add("b", "second", 5'000, 6'500);
  add("a", "first", 2'000, 5'000);
  auto events = nlohmann::json::parse(ChromeTrace(timeline))["traceEvents"];
  ASSERT_EQ(events.size(), 7u);  // the process, two a lane, two of the timeline
  EXPECT_EQ(events[1]["args"]["name"], "a");
  EXPECT_EQ(events[1]["tid"], 1);
  EXPECT_EQ(events[5]["name"], "second");
  EXPECT_EQ(events[5]["tid"], 2);
  EXPECT_EQ(events[5]["ts"], 3.0);
  EXPECT_EQ(events[5]["dur"], 1.5);
  EXPECT_EQ(events[6]["ts"], 0.0);
}

}  // namespace
}  // namespace harmony
