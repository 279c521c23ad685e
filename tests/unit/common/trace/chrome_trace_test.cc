#include "common/trace/chrome_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace harmony::trace {
namespace {

TEST(ChromeTraceTest, RowsInOrderOfComingAndOneOriginOfTime) {
  ChromeTraceWriter trace;
  trace.Add({"device 1", "d2h", "gradients", Nanos(7000), Nanos(9000), {{"step", 2}}});
  trace.Add({"device 1", "compute", "forward", Nanos(5000), Nanos(6500), {}});
  trace.Add({"device 0", "compute", "forward", Nanos(6000), Nanos(6200), {}});
  trace.Add({"device 1", "d2h", "stash", Nanos(9000), Nanos(9100), {}});
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") == "X") events.push_back(event);
  }
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].at("ts"), 2.0);
  EXPECT_EQ(events[0].at("dur"), 2.0);
  EXPECT_EQ(events[0].at("args").at("step"), 2);
  EXPECT_EQ(events[0].at("pid"), 1);
  EXPECT_EQ(events[0].at("tid"), 1);
  EXPECT_EQ(events[1].at("ts"), 0.0);
  EXPECT_EQ(events[1].at("tid"), 2);
  EXPECT_EQ(events[2].at("pid"), 2);
  EXPECT_EQ(events[2].at("tid"), 1);
  EXPECT_EQ(events[2].at("ts"), 1.0) << "one origin for all processes";
  EXPECT_EQ(events[3].at("tid"), 1);
}

}  // namespace
}  // namespace harmony::trace
