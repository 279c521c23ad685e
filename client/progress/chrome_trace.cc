#include "client/progress/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace harmony {

std::string ChromeTrace(const v1::Timeline& timeline) {
  using Json = nlohmann::ordered_json;
  std::map<std::string, int> rows;
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const v1::TimelineEvent& event : timeline.events()) {
    rows.emplace(event.lane(), 0);
    origin = std::min(origin, event.start_ns());
  }
  Json events = Json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", 1},
                    {"args", {{"name", "harmony, measured"}}}});
  int next = 1;
  for (auto& [lane, row] : rows) {
    row = next++;
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", row},
                      {"args", {{"name", lane}}}});
    events.push_back({{"name", "thread_sort_index"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", row},
                      {"args", {{"sort_index", row}}}});
  }
  for (const v1::TimelineEvent& event : timeline.events()) {
    auto micros = [](int64_t nanos) { return static_cast<double>(nanos) / 1000.0; };
    events.push_back({{"name", event.name()},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", rows[event.lane()]},
                      {"ts", micros(event.start_ns() - origin)},
                      {"dur", micros(event.end_ns() - event.start_ns())},
                      {"args",
                       {{"step", event.step()},
                        {"wait_us", micros(event.wait_ns())},
                        {"generation", event.generation()}}}});
  }
  Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace harmony
