#include "coordinator/service/replan/measured_scales.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"

namespace harmony::service {
namespace {

using Wanted = std::function<bool(const MeasuredCommand&)>;

struct Sum {
  double measured = 0, modelled = 0;

  void Add(Nanos seconds, Nanos expected) {
    measured += seconds.seconds();
    modelled += expected.seconds();
  }
  // Nothing where nothing was done.
  std::optional<double> Scale() const {
    if (measured <= 0 || modelled <= 0) return std::nullopt;
    return measured / modelled;
  }
};

// The time in which the cores would have done what was done of a command while others ran on them,
// too, which the operating system divides equally.
class CoreTime {
 public:
  CoreTime(const LaneMonitor& monitor, const plan::LaneResources& resources,
           const plan::CoreSharing& cores) {
    if (cores.devices.empty()) return;
    const command::LaneTable& lanes = monitor.table();
    const int shared =
        resources.of_lane[lanes.IndexOf({command::LaneKind::kCompute, cores.devices.front()})];
    std::map<Nanos, double> changes;  // of what is wanted of the cores
    parts_.resize(static_cast<size_t>(lanes.size()));
    for (int lane = 0; lane < lanes.size(); ++lane) {
      double& part = parts_[static_cast<size_t>(lane)];
      if (resources.of_lane[lane] == shared) {
        part = 1;
      } else if (resources.cores == shared) {
        part = resources.of_cores[lane];
      }
      if (part <= 0) continue;
      for (const MeasuredCommand& done : monitor.Timeline(lane)) {
        changes[done.start] += part;
        changes[done.end] -= part;
      }
    }
    Nanos last, given;
    double wanted = 0;
    for (const auto& [at, change] : changes) {
      const double part = std::min(1.0, cores.at_once / std::max(wanted, 1.0));
      given += Nanos::FromSeconds((at - last).seconds() * part);
      given_[at] = given;
      wanted += change;
      last = at;
    }
  }
  // `from` and `to`: when commands of the lane, or of others on the same cores, began or ended.
  Nanos Of(int lane, Nanos from, Nanos to) const {
    const bool shared = !parts_.empty() && parts_[static_cast<size_t>(lane)] > 0;
    return shared ? given_.at(to) - given_.at(from) : to - from;
  }

 private:
  std::vector<double> parts_;     // by lane, of a core's time: what a command wants; 0: none
  std::map<Nanos, Nanos> given_;  // to a command that had run all the time
};

class Reader {
 public:
  Reader(const LaneMonitor& monitor, const plan::Plan& plan, const plan::CoreSharing& cores,
         int64_t first_step, int64_t end_step)
      : monitor_(monitor),
        resources_(plan::ResourcesOfLanes(plan, cores)),
        core_time_(monitor, resources_, cores),
        first_(first_step),
        end_(end_step) {}

  std::optional<double> OfLane(const command::Lane& lane, const Wanted& wanted) const {
    const int index = monitor_.table().IndexOf(lane);
    Sum sum;
    for (const MeasuredCommand& done : monitor_.Timeline(index)) {
      // How long a task stood still on its way is not reported: it says nothing of its device.
      if (!Counts(done) || done.label.may_stall || !wanted(done)) continue;
      sum.Add(core_time_.Of(index, done.start, done.end), done.expected);
    }
    return sum.Scale();
  }

  // Of the device's copies over the link that carries the lane's, which others may share.
  std::optional<double> OfLink(const command::Lane& lane) const {
    struct Copy {
      MeasuredCommand done;
      int lane;
      bool ours;
    };
    std::vector<Copy> copies;
    const command::LaneTable& lanes = monitor_.table();
    const int link = resources_.of_lane[lanes.IndexOf(lane)];
    for (int other = 0; other < lanes.size(); ++other) {
      if (resources_.of_lane[other] != link) continue;
      for (const MeasuredCommand& done : monitor_.Timeline(other)) {
        if (Counts(done))
          copies.push_back({done, other, lanes.LaneAt(other).device == lane.device});
      }
    }
    std::sort(copies.begin(), copies.end(),
              [](const Copy& a, const Copy& b) { return a.done.end < b.done.end; });
    Sum sum;
    Nanos free_at;
    for (const Copy& copy : copies) {
      if (copy.ours) {
        const Nanos from = std::max(copy.done.start, free_at);
        sum.Add(core_time_.Of(copy.lane, from, copy.done.end), copy.done.expected);
      }
      free_at = copy.done.end;
    }
    return sum.Scale();
  }

 private:
  bool Counts(const MeasuredCommand& done) const {
    return done.label.step >= first_ && done.label.step < end_ && done.expected.count() > 0;
  }

  const LaneMonitor& monitor_;
  const plan::LaneResources resources_;
  const CoreTime core_time_;
  const int64_t first_, end_;
};

bool IsForward(const MeasuredCommand& done) {
  return static_cast<command::TaskKind>(done.label.kind) == command::TaskKind::kForward;
}

// Fills the gaps with the middle of what is there; with 1 where nothing is.
std::vector<double> Filled(const std::vector<std::optional<double>>& scales) {
  std::vector<double> known;
  for (const std::optional<double>& scale : scales) {
    if (scale) known.push_back(*scale);
  }
  std::sort(known.begin(), known.end());
  const double middle = known.empty() ? 1 : known[known.size() / 2];
  std::vector<double> filled;
  for (const std::optional<double>& scale : scales) filled.push_back(scale.value_or(middle));
  return filled;
}

}  // namespace

dispatch::CostScales ScalesOf(const LaneMonitor& monitor, const plan::Plan& plan,
                              const plan::CoreSharing& cores, int64_t first_step,
                              int64_t end_step) {
  const Reader reader(monitor, plan, cores, first_step, end_step);
  const int devices = static_cast<int>(plan.devices.size());
  std::vector<std::optional<double>> forward, backward, h2d, d2h, p2p;
  for (int d = 0; d < devices; ++d) {
    const command::Lane compute{command::LaneKind::kCompute, d};
    forward.push_back(reader.OfLane(compute, IsForward));
    backward.push_back(reader.OfLane(compute, std::not_fn(IsForward)));
    // A device that only ever ran one of the two is as fast in the other.
    if (!forward[d]) forward[d] = backward[d];
    if (!backward[d]) backward[d] = forward[d];
    h2d.push_back(reader.OfLink({command::LaneKind::kH2DBulk, d}));
    d2h.push_back(reader.OfLink({command::LaneKind::kD2H, d}));
    p2p.push_back(
        reader.OfLane({command::LaneKind::kP2P, d}, [](const MeasuredCommand&) { return true; }));
  }
  const std::vector<double> by[] = {Filled(forward), Filled(backward), Filled(h2d), Filled(d2h),
                                    Filled(p2p)};
  dispatch::CostScales scales;
  for (int d = 0; d < devices; ++d) {
    scales.devices.push_back({by[0][d], by[1][d], by[2][d], by[3][d], by[4][d]});
  }
  const auto is = [](command::HostTaskKind a, command::HostTaskKind b) {
    return [a, b](const MeasuredCommand& done) {
      const auto kind = static_cast<command::HostTaskKind>(done.label.kind);
      return kind == a || kind == b;
    };
  };
  scales.updates = reader
                       .OfLane({command::LaneKind::kHostCompute, 0},
                               is(command::HostTaskKind::kUpdate, command::HostTaskKind::kNorm))
                       .value_or(1);
  scales.data = reader
                    .OfLane({command::LaneKind::kHostIo, 0}, is(command::HostTaskKind::kLoadBatch,
                                                                command::HostTaskKind::kLoadBatch))
                    .value_or(1);
  return scales;
}

}  // namespace harmony::service
