#include "client/progress/chrome_trace.h"

#include "common/trace/chrome_trace.h"

namespace harmony {

std::string ChromeTrace(const v1::Timeline& timeline) {
  ChromeTraceWriter trace;
  for (const v1::TimelineEvent& event : timeline.events()) {
    const auto micros = [](int64_t nanos) { return static_cast<double>(nanos) / 1000.0; };
    trace.Add({"harmony, measured",
               event.lane(),
               event.name(),
               Nanos(event.start_ns()),
               Nanos(event.end_ns()),
               {{"step", static_cast<double>(event.step())},
                {"wait_us", micros(event.wait_ns())},
                {"issued_before_us", micros(event.start_ns() - event.issued_ns())},
                {"generation", static_cast<double>(event.generation())}}});
  }
  return trace.ToJson();
}

}  // namespace harmony
