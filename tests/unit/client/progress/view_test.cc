#include "client/progress/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/progress/chrome_trace.h"

namespace harmony::client {
namespace {

TEST(LoggingSteps, ComesFromTheFileAndIsOverridden) {
  EXPECT_EQ(LoggingStepsOf("max_steps: 7\n", {}), 1);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 10\n", {}), 10);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 10\n", {"max_steps=1", "logging_steps=4"}), 4);
  EXPECT_EQ(LoggingStepsOf("logging_steps: [many\n", {}), 1);
  EXPECT_EQ(LoggingStepsOf("logging_steps: 0\n", {}), 1);
}

v1::TimelineEvent EventAt(int device, const char* queue, const char* name, int64_t start,
                          int64_t end) {
  v1::TimelineEvent event;
  event.set_device(device);
  event.set_queue(queue);
  event.set_name(name);
  event.set_start_ns(start);
  event.set_end_ns(end);
  return event;
}

TEST(ChromeTrace, PlannedBesideMeasuredAndWaitsForCommandsShown) {
  v1::Timeline timeline;
  *timeline.add_events() = EventAt(0, "compute", "first", 2'000, 5'000);
  v1::TimelineEvent late = EventAt(0, "compute", "second", 9'000, 9'500);
  late.set_wait_ns(4'000);
  late.set_command_wait_ns(3'000);
  *timeline.add_events() = late;
  *timeline.add_events() = EventAt(-1, "updates", "update block 0", 9'000, 9'500);
  *timeline.add_planned() = EventAt(0, "compute", "first", 2'000, 4'000);

  std::map<std::pair<int, int>, std::string> rows;
  std::vector<std::string> shown;
  const auto json = nlohmann::json::parse(ChromeTrace(timeline));
  for (const auto& event : json["traceEvents"]) {
    const std::pair<int, int> at(event["pid"], event["tid"]);
    if (event["name"] == "thread_name") rows[at] = event["args"]["name"];
    if (event["name"] == "process_name") rows[at] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    shown.push_back(absl::StrCat(rows[{at.first, 0}], ", ", rows[at], ": ",
                                 event["name"].get<std::string>(), " ", event["ts"].get<double>(),
                                 "+", event["dur"].get<double>()));
  }
  EXPECT_THAT(shown, ::testing::ElementsAre("device 0, compute, measured: first 0+3",
                                            "device 0, compute, measured: waiting for commands 3+3",
                                            "device 0, compute, measured: second 7+0.5",
                                            "device 0, compute, planned: first 0+2",
                                            "host, updates, measured: update block 0 7+0.5"));
}

}  // namespace
}  // namespace harmony::client
