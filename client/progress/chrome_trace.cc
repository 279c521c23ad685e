#include "client/progress/chrome_trace.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/trace/chrome_trace.h"

namespace harmony::client {
namespace {

// The events of one lane, in order.
struct Row {
  std::string process, queue;
  std::vector<const v1::TimelineEvent*> measured, planned;
};

Row& RowOf(std::vector<Row>& rows, const v1::TimelineEvent& event) {
  std::string process =
      event.device() < 0 ? std::string("host") : absl::StrCat("device ", event.device());
  for (Row& row : rows) {
    if (row.process == process && row.queue == event.queue()) return row;
  }
  rows.push_back({std::move(process), event.queue(), {}, {}});
  return rows.back();
}

double Micros(int64_t nanos) { return static_cast<double>(nanos) / 1000.0; }

void AddMeasured(const Row& row, trace::ChromeTraceWriter& trace) {
  const std::string lane = absl::StrCat(row.queue, ", measured");
  for (const v1::TimelineEvent* event : row.measured) {
    const auto step = static_cast<double>(event->step() + 1);
    const Nanos start(event->start_ns());
    if (event->command_wait_ns() > 0) {
      const Nanos free = start - Nanos(event->wait_ns());
      trace.Add({row.process,
                 lane,
                 "waiting for commands",
                 free,
                 free + Nanos(event->command_wait_ns()),
                 {{"step", step}, {"command_wait_us", Micros(event->command_wait_ns())}}});
    }
    trace.Add({row.process,
               lane,
               event->name(),
               start,
               Nanos(event->end_ns()),
               {{"step", step},
                {"wait_us", Micros(event->wait_ns())},
                {"issued_before_us", Micros(event->start_ns() - event->issued_ns())},
                {"received_before_us", Micros(event->start_ns() - event->received_ns())},
                {"generation", static_cast<double>(event->generation())}}});
  }
}

}  // namespace

std::string ChromeTrace(const v1::Timeline& timeline) {
  std::vector<Row> rows;
  for (const v1::TimelineEvent& event : timeline.events()) {
    RowOf(rows, event).measured.push_back(&event);
  }
  for (const v1::TimelineEvent& event : timeline.planned()) {
    RowOf(rows, event).planned.push_back(&event);
  }
  trace::ChromeTraceWriter trace;
  for (const Row& row : rows) {
    AddMeasured(row, trace);
    for (const v1::TimelineEvent* event : row.planned) {
      trace.Add({row.process,
                 absl::StrCat(row.queue, ", planned"),
                 event->name(),
                 Nanos(event->start_ns()),
                 Nanos(event->end_ns()),
                 {{"step", static_cast<double>(event->step() + 1)}}});
    }
  }
  return trace.ToJson();
}

}  // namespace harmony::client
