#include "common/trace/chrome_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace harmony {
namespace {

TEST(ChromeTraceTest, OneRowALaneAndTimesFromTheFirstEvent) {
  ChromeTraceWriter trace;
  trace.Add({"measured", "d2h0", "gradients", Nanos(7000), Nanos(9000), {{"step", 2}}});
  trace.Add({"measured", "compute0", "forward", Nanos(5000), Nanos(6500), {}});
  trace.Add({"planned", "compute0", "forward", Nanos(100), Nanos(200), {}});
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") == "X") events.push_back(event);
  }
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].at("ts"), 2.0);
  EXPECT_EQ(events[0].at("dur"), 2.0);
  EXPECT_EQ(events[0].at("args").at("step"), 2);
  EXPECT_EQ(events[0].at("tid"), 2) << "lanes in name order";
  EXPECT_EQ(events[1].at("tid"), 1);
  EXPECT_NE(events[1].at("pid"), events[2].at("pid"));
  EXPECT_EQ(events[2].at("ts"), 0.0);
}

}  // namespace
}  // namespace harmony
