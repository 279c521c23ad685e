#include "common/trace/chrome_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace harmony::trace {
namespace {

using Json = nlohmann::ordered_json;

// Numbered from 1, in the order in which they come first.
struct Process {
  int pid = 0;
  std::vector<std::string> lanes;

  int RowOf(const std::string& lane) const {
    return static_cast<int>(std::find(lanes.begin(), lanes.end(), lane) - lanes.begin()) + 1;
  }
};
struct Layout {
  std::vector<std::string> names;  // of processes, in order
  std::map<std::string, Process> processes;
  Nanos origin;
};

double Micros(Nanos nanos) { return static_cast<double>(nanos.count()) / 1000.0; }

Layout LayOut(const std::vector<TraceEvent>& events) {
  Layout layout;
  for (const TraceEvent& event : events) {
    layout.origin = &event == &events.front() ? event.start : std::min(layout.origin, event.start);
    const auto [it, added] = layout.processes.try_emplace(event.process);
    Process& process = it->second;
    if (added) {
      layout.names.push_back(event.process);
      process.pid = static_cast<int>(layout.names.size());
    }
    if (process.RowOf(event.lane) > static_cast<int>(process.lanes.size())) {
      process.lanes.push_back(event.lane);
    }
  }
  return layout;
}

Json Label(const char* what, int pid, int tid, Json arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

}  // namespace

std::string ChromeTraceWriter::ToJson() const {
  const Layout layout = LayOut(events_);
  Json out = Json::array();
  for (const std::string& name : layout.names) {
    const Process& process = layout.processes.at(name);
    out.push_back(Label("process_name", process.pid, 0, {{"name", name}}));
    out.push_back(Label("process_sort_index", process.pid, 0, {{"sort_index", process.pid}}));
    for (const std::string& lane : process.lanes) {
      const int row = process.RowOf(lane);
      out.push_back(Label("thread_name", process.pid, row, {{"name", lane}}));
      out.push_back(Label("thread_sort_index", process.pid, row, {{"sort_index", row}}));
    }
  }
  for (const TraceEvent& event : events_) {
    const Process& process = layout.processes.at(event.process);
    Json arguments = Json::object();
    for (const auto& [key, value] : event.details) arguments[key] = value;
    out.push_back({{"name", event.name},
                   {"ph", "X"},
                   {"pid", process.pid},
                   {"tid", process.RowOf(event.lane)},
                   {"ts", Micros(event.start - layout.origin)},
                   {"dur", Micros(event.end - event.start)},
                   {"args", std::move(arguments)}});
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(out)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace harmony::trace
