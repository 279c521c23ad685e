#include "coordinator/service/run/lane_monitor.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace harmony::service {
namespace {

struct Labeller {
  CommandLabel operator()(const command::ComputeTask& task) const {
    CommandLabel label;
    label.body = CommandLabel::Body::kCompute;
    label.kind = static_cast<uint8_t>(task.kind);
    label.first = task.layers.first;
    label.last = task.layers.last;
    label.microbatch = task.microbatch;
    label.samples = task.samples;
    label.may_stall = !task.gradient_waits.empty();
    return label;
  }
  CommandLabel operator()(const command::Transfer& transfer) const {
    CommandLabel label;
    label.body = CommandLabel::Body::kTransfer;
    label.kind = static_cast<uint8_t>(transfer.traffic);
    label.first = transfer.source.device;
    label.last = transfer.destination.device;
    label.bytes = transfer.size.count();
    return label;
  }
  CommandLabel operator()(const command::HostTask& task) const {
    CommandLabel label;
    label.body = CommandLabel::Body::kHost;
    label.kind = static_cast<uint8_t>(task.kind);
    label.first = task.block;
    return label;
  }
};

std::string PlaceName(int device) { return device < 0 ? "host" : absl::StrCat("device ", device); }

}  // namespace

CommandLabel LabelOf(const command::Command& command) {
  CommandLabel label = std::visit(Labeller(), command.body);
  label.step = command.header.step;
  return label;
}

std::string Describe(const CommandLabel& label, const plan::Plan& plan) {
  static constexpr const char* kTasks[] = {"forward", "backward", "forward+backward"};
  static constexpr const char* kHostTasks[] = {"initialize", "load batch", "step scalars", "norm",
                                               "clip",       "update",     "checkpoint"};
  switch (label.body) {
    case CommandLabel::Body::kCompute: {
      const int64_t task_microbatches = std::max<int64_t>(label.samples / plan.microbatch_size, 1);
      const int64_t first = label.microbatch * task_microbatches + 1;
      return absl::StrCat(kTasks[label.kind], " layers ", label.first, "-", label.last,
                          task_microbatches > 1 ? absl::StrCat(", microbatches ", first, "-",
                                                               first + task_microbatches - 1)
                                                : absl::StrCat(", microbatch ", first),
                          " of ", plan.num_microbatches);
    }
    case CommandLabel::Body::kTransfer:
      return absl::StrCat(ToString(static_cast<command::TrafficClass>(label.kind)), " ",
                          FormatBytes(Bytes(label.bytes)), ", ", PlaceName(label.first), " to ",
                          PlaceName(label.last));
    case CommandLabel::Body::kHost:
      break;
  }
  std::string text = kHostTasks[label.kind];
  if (label.first >= 0) absl::StrAppend(&text, " block ", label.first);
  return text;
}

LaneMonitor::LaneMonitor(int num_devices, size_t timeline_entries_per_lane)
    : table_(num_devices), capacity_(timeline_entries_per_lane), lanes_(table_.size()) {}

void LaneMonitor::BeginGeneration(uint32_t generation, Nanos now) {
  generation_ = generation;
  for (LaneState& lane : lanes_) {
    if (!lane.outstanding.empty()) lane.usage.outstanding += now - lane.outstanding_since;
    lane.outstanding.clear();
    lane.last_end = Nanos();
  }
}

void LaneMonitor::OnIssued(const command::Command& command, Nanos expected, Nanos now) {
  LaneState& lane = lanes_[command.header.lane];
  if (lane.outstanding.empty()) lane.outstanding_since = now;
  lane.outstanding.push_back(
      {command.header.signal_value, LabelOf(command), command.header.waits, now, expected, false});
}

void LaneMonitor::Count(LaneState& lane, Outstanding& command) {
  if (command.counted || command.label.body != CommandLabel::Body::kTransfer) return;
  command.counted = true;
  lane.usage.bytes += command.label.bytes;
  total_[command.label.kind] += command.label.bytes;
  by_step_[command.label.step][command.label.kind] += command.label.bytes;
}

void LaneMonitor::OnProgress(int index, uint64_t value, absl::Span<const ReportedTiming> timings,
                             Nanos now) {
  LaneState& lane = lanes_[index];
  size_t next_timing = 0;
  while (!lane.outstanding.empty() && lane.outstanding.front().value <= value) {
    Outstanding command = std::move(lane.outstanding.front());
    lane.outstanding.pop_front();
    Count(lane, command);
    while (next_timing < timings.size() && timings[next_timing].value < command.value) {
      ++next_timing;
    }
    if (next_timing < timings.size() && timings[next_timing].value == command.value) {
      const ReportedTiming& timing = timings[next_timing++];
      lane.usage.busy += timing.end - timing.start;
      const bool first = lane.last_end.count() == 0;
      const Nanos wait = first ? Nanos() : timing.start - lane.last_end;
      const Nanos command_wait =
          first ? Nanos() : std::max(timing.received - lane.last_end, Nanos());
      lane.usage.starved += command_wait;
      lane.timeline.push_back({command.label, command.issued, timing.received, timing.start,
                               timing.end, command.expected, std::max(wait, Nanos()), command_wait,
                               generation_});
      lane.last_end = timing.end;
      if (lane.timeline.size() > capacity_) {
        first_whole_step_ = std::max(first_whole_step_, lane.timeline.front().label.step + 1);
        lane.timeline.pop_front();
      }
    }
    if (lane.outstanding.empty()) lane.usage.outstanding += now - lane.outstanding_since;
  }
}

SwapTotals LaneMonitor::TakeStep(int64_t step) {
  for (LaneState& lane : lanes_) {
    for (Outstanding& command : lane.outstanding) {
      if (command.label.step <= step) Count(lane, command);
    }
  }
  SwapTotals totals = {};
  const auto found = by_step_.find(step);
  if (found != by_step_.end()) totals = found->second;
  by_step_.erase(by_step_.begin(), by_step_.upper_bound(step));
  return totals;
}

std::optional<Nanos> LaneMonitor::EndOfStep(int64_t step) const {
  const auto& done = lanes_[table_.IndexOf({command::LaneKind::kHostCompute, 0})].timeline;
  const auto found = std::find_if(done.rbegin(), done.rend(), [&](const MeasuredCommand& command) {
    return command.label.step == step;
  });
  if (found == done.rend()) return std::nullopt;
  return found->end;
}

LaneUsage LaneMonitor::Usage(int index, Nanos now) const {
  const LaneState& lane = lanes_[index];
  LaneUsage usage = lane.usage;
  if (!lane.outstanding.empty()) usage.outstanding += now - lane.outstanding_since;
  return usage;
}

int64_t LaneMonitor::FirstOutstandingStep() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const LaneState& lane : lanes_) {
    for (const Outstanding& command : lane.outstanding) first = std::min(first, command.label.step);
  }
  return first;
}

const CommandLabel* LaneMonitor::Head(int index) const {
  const LaneState& lane = lanes_[index];
  return lane.outstanding.empty() ? nullptr : &lane.outstanding.front().label;
}

const std::vector<command::SemaphoreWait>& LaneMonitor::HeadWaits(int index) const {
  return lanes_[index].outstanding.front().waits;
}

}  // namespace harmony::service
