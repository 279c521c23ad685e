#include "coordinator/planner/report/bottleneck.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/report/lane_words.h"

namespace harmony::planner {
namespace {

// From here on a lane is what the step waits for.
constexpr double kBinds = 0.9;

// Goes from the end of the step back to its beginning, always to what the command waited for last.
std::vector<Nanos> ChainOf(const Estimate& estimate, int lanes) {
  const std::vector<TimelineEntry>& events = estimate.events;
  std::vector<std::vector<int>> by_lane(lanes);  // events, of value i + 1
  plan::ResourceClock clock(estimate.resources);
  std::vector<int> last_on_server(clock.num_servers(), -1);
  std::vector<int> before_on_server, before_on_lane;  // by event
  int at = -1;
  for (int i = 0; i < static_cast<int>(events.size()); ++i) {
    const TimelineEntry& entry = events[i];
    std::vector<int>& lane = by_lane[entry.lane];
    before_on_lane.push_back(lane.empty() ? -1 : lane.back());
    lane.push_back(i);
    // Events stand in the order of their starts, in which the evaluation's servers were taken.
    const size_t server =
        clock.Start(entry.lane, entry.begin, entry.command.header.expected).server;
    before_on_server.push_back(std::exchange(last_on_server[server], i));
    const auto* host = std::get_if<command::HostTask>(&entry.command.body);
    if (host != nullptr && host->kind == command::HostTaskKind::kUpdate &&
        entry.end == estimate.step_end) {
      at = i;
    }
  }
  std::vector<Nanos> chain(lanes);
  // A core is free again when its task would have ended without stalling, so what waited for the
  // core waited until then only.
  const auto free_at = [&](int event) {
    return events[event].begin + events[event].command.header.expected;
  };
  Nanos until = at >= 0 ? events[at].end : estimate.step_begin;
  while (at >= 0 && until > estimate.step_begin) {
    const TimelineEntry& entry = events[at];
    int before = -1;
    Nanos before_end;
    const auto after = [&](int other, Nanos end) {
      if (before >= 0 && end <= before_end) return;
      before = other;
      before_end = end;
    };
    const auto after_all = [&](const std::vector<command::SemaphoreWait>& waits) {
      for (const command::SemaphoreWait& wait : waits) {
        const int other = by_lane[wait.semaphore][wait.value - 1];
        after(other, events[other].end);
      }
    };
    Nanos begin = entry.begin;
    const auto* task = std::get_if<command::ComputeTask>(&entry.command.body);
    if (task != nullptr && until > free_at(at)) {
      // It stalled on its way, behind copies that end one after the other.
      after_all(task->gradient_waits);
      begin = std::max(begin, before_end);
    } else {
      const int server = before_on_server[at], lane = before_on_lane[at];
      if (server >= 0) after(server, free_at(server));
      if (lane >= 0) after(lane, events[lane].end);
      after_all(entry.command.header.waits);
    }
    chain[entry.lane] += until - std::max(begin, estimate.step_begin);
    at = before;
    until = before_end;
  }
  return chain;
}

std::string NameOf(const command::Lane& lane) {
  return command::IsHostLane(lane)
             ? absl::StrCat("host: ", WordsOf(lane.kind).activity)
             : absl::StrCat("device ", lane.device, ": ", WordsOf(lane.kind).activity);
}

// By kind of task, traffic, kind of task of the host.
char LetterOf(const command::Command& command) {
  static constexpr char kTasks[] = "FBX", kCopies[] = "wgscptlr", kHostTasks[] = "oooNoUo";
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    return kTasks[static_cast<size_t>(task->kind)];
  }
  if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    return kCopies[static_cast<size_t>(copy->traffic)];
  }
  return kHostTasks[static_cast<size_t>(std::get<command::HostTask>(command.body).kind)];
}

// Of what several lanes share: all of them together.
std::string NameOfShared(const command::LaneTable& table, const std::vector<int>& lanes) {
  std::vector<std::string> devices;
  for (int lane : lanes) {
    std::string device = absl::StrCat(table.LaneAt(lane).device);
    if (devices.empty() || devices.back() != device) devices.push_back(std::move(device));
  }
  const command::LaneKind kind = table.LaneAt(lanes.front()).kind;
  return absl::StrCat("device", devices.size() == 1 ? " " : "s ", absl::StrJoin(devices, ","),
                      kind == command::LaneKind::kCompute ? ": cores together"
                      : kind == command::LaneKind::kD2H   ? ": link out together"
                                                          : ": link in together");
}

void AddShared(const Estimate& estimate, const command::LaneTable& table,
               const std::vector<Nanos>& chain, std::vector<LaneLoad>* loads) {
  const double step = std::max(estimate.step.seconds(), 1e-12);
  for (int resource = 0; resource < table.size(); ++resource) {
    std::vector<int> lanes;
    LaneLoad load;
    for (int i = resource; i < table.size(); ++i) {
      if (estimate.resources.of_lane[i] != resource || estimate.lanes[i].commands == 0) continue;
      lanes.push_back(i);
      load.bytes += estimate.lanes[i].bytes;
      load.on_the_chain += chain[i];
    }
    // One device alone may compute on cores that other lanes take of.
    if (lanes.size() < (estimate.resources.cores == resource ? 1 : 2)) continue;
    load.name = NameOfShared(table, lanes);
    load.busy = estimate.of_resources[resource];
    load.share = load.busy.seconds() / step;
    loads->push_back(std::move(load));
  }
}

}  // namespace

Bottleneck BottleneckOf(const Estimate& estimate, int num_devices) {
  const command::LaneTable table(num_devices);
  const std::vector<Nanos> chain = ChainOf(estimate, table.size());
  const double step = std::max(estimate.step.seconds(), 1e-12);
  Bottleneck bottleneck;
  std::vector<LaneLoad>& lanes = bottleneck.lanes;
  for (int i = 0; i < table.size(); ++i) {
    const LaneTotals& totals = estimate.lanes[i];
    if (totals.commands == 0) continue;
    lanes.push_back({NameOf(table.LaneAt(i)), totals.busy, totals.busy.seconds() / step,
                     totals.bytes, chain[i]});
  }
  if (lanes.empty()) return bottleneck;
  AddShared(estimate, table, chain, &lanes);
  const auto most = [&](auto of) {
    return static_cast<int>(
        absl::c_max_element(lanes,
                            [&](const LaneLoad& a, const LaneLoad& b) { return of(a) < of(b); }) -
        lanes.begin());
  };
  bottleneck.busiest = most([](const LaneLoad& load) { return load.busy; });
  const int longest = most([](const LaneLoad& load) { return load.on_the_chain; });
  const LaneLoad& busiest = bottleneck.lanes[bottleneck.busiest];
  bottleneck.verdict =
      busiest.share >= kBinds
          ? absl::StrFormat("%s binds: busy for %.0f%% of the step", busiest.name,
                            100 * busiest.share)
          : absl::StrFormat(
                "no lane is busy all the time (%s most, %.0f%%); of the chain of tasks and copies "
                "that makes the step, %.0f%% is %s",
                busiest.name, 100 * busiest.share,
                100 * bottleneck.lanes[longest].on_the_chain.seconds() / step,
                bottleneck.lanes[longest].name);
  return bottleneck;
}

std::vector<TimelineRow> DrawTimeline(const Estimate& estimate, int num_devices, int width) {
  const command::LaneTable table(num_devices);
  const int64_t begin = estimate.step_begin.count();
  const int64_t length = std::max<int64_t>((estimate.step_end - estimate.step_begin).count(), 1);
  // By lane and column: nanoseconds of each letter.
  std::vector<std::vector<std::array<int64_t, 128>>> time(
      table.size(), std::vector<std::array<int64_t, 128>>(width));
  for (const TimelineEntry& entry : estimate.events) {
    const auto letter = static_cast<size_t>(LetterOf(entry.command));
    for (int64_t at = std::max(entry.begin.count() - begin, int64_t{0});
         at < std::min(entry.end.count() - begin, length);) {
      const int64_t column = static_cast<int64_t>(static_cast<double>(at) * width / length);
      const int64_t column_end = std::max(
          at + 1, static_cast<int64_t>(static_cast<double>(length) * (column + 1) / width));
      const int64_t until = std::min(entry.end.count() - begin, column_end);
      time[entry.lane][std::min<int64_t>(column, width - 1)][letter] += until - at;
      at = until;
    }
  }
  std::vector<TimelineRow> rows;
  for (int lane = 0; lane < table.size(); ++lane) {
    if (estimate.lanes[lane].commands == 0) continue;
    TimelineRow row{NameOf(table.LaneAt(lane)), ""};
    for (const auto& column : time[lane]) {
      const auto most = std::max_element(column.begin(), column.end());
      int64_t busy = 0;
      for (int64_t nanos : column) busy += nanos;
      row.cells += busy * 2 * width < length ? '.' : static_cast<char>(most - column.begin());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

const char* TimelineLegend() {
  return "F forward, B backward, X forward and backward of the last group; w weights, g gradients, "
         "s stashes, c boundary gradients to the arena, p boundary tensors, t tokens; U updates, N "
         "norms; . idle";
}

}  // namespace harmony::planner
