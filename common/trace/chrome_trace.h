#pragma once

// Timelines in the Chrome trace format, which chrome://tracing and Perfetto load: the same lanes
// for planned and for measured runs, side by side.
//
//   ChromeTraceWriter trace;
//   trace.Add({"device 0", "compute, measured", "forward layers 0-1", start, end, {{"step", 3}}});
//   file << trace.ToJson();

#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace harmony::trace {

struct TraceEvent {
  std::string process;  // a group of lanes: "device 0"
  std::string lane;     // its events do not overlap
  std::string name;
  Nanos start, end;
  std::vector<std::pair<std::string, double>> details;
};

// Not thread-safe.
class ChromeTraceWriter {
 public:
  void Add(TraceEvent event) { events_.push_back(std::move(event)); }

  // A JSON object with "traceEvents": processes, their lanes and all events in the order in which
  // they were first added, times in microseconds from the earliest event. The same events give the
  // same bytes.
  std::string ToJson() const;

 private:
  std::vector<TraceEvent> events_;
};

}  // namespace harmony::trace
