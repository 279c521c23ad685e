#include "common/trace/chrome_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace harmony {
namespace {

using Json = nlohmann::ordered_json;

// A process of the trace: its number, its first event, the rows of its lanes.
struct Rows {
  int pid = 0;
  Nanos origin;
  std::map<std::string, int> lanes;
};

double Micros(Nanos nanos) { return static_cast<double>(nanos.count()) / 1000.0; }

std::map<std::string, Rows> Number(const std::vector<TraceEvent>& events) {
  std::map<std::string, Rows> processes;
  for (const TraceEvent& event : events) {
    const auto [it, added] = processes.try_emplace(event.process);
    Rows& rows = it->second;
    rows.origin = added ? event.start : std::min(rows.origin, event.start);
    rows.lanes.emplace(event.lane, 0);
  }
  int pid = 0;
  for (auto& [name, rows] : processes) {
    rows.pid = ++pid;
    int row = 0;
    for (auto& [lane, number] : rows.lanes) number = ++row;
  }
  return processes;
}

Json Label(const char* what, int pid, int tid, Json arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

}  // namespace

std::string ChromeTraceWriter::ToJson() const {
  const std::map<std::string, Rows> processes = Number(events_);
  Json out = Json::array();
  for (const auto& [name, rows] : processes) {
    out.push_back(Label("process_name", rows.pid, 0, {{"name", name}}));
    for (const auto& [lane, row] : rows.lanes) {
      out.push_back(Label("thread_name", rows.pid, row, {{"name", lane}}));
      out.push_back(Label("thread_sort_index", rows.pid, row, {{"sort_index", row}}));
    }
  }
  for (const TraceEvent& event : events_) {
    const Rows& rows = processes.at(event.process);
    Json arguments = Json::object();
    for (const auto& [key, value] : event.details) arguments[key] = value;
    out.push_back({{"name", event.name},
                   {"ph", "X"},
                   {"pid", rows.pid},
                   {"tid", rows.lanes.at(event.lane)},
                   {"ts", Micros(event.start - rows.origin)},
                   {"dur", Micros(event.end - event.start)},
                   {"args", std::move(arguments)}});
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(out)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace harmony
