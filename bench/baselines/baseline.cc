#include "bench/baselines/baseline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace harmony::baselines {
namespace {

// Microbatch sizes that are tried where the job leaves that open: so many of the divisors, evenly
// from the smallest to the largest.
constexpr size_t kMostSizes = 8;
// Tasks of a simulated step, over all devices: some tens of milliseconds.
constexpr int64_t kMostTasks = 10'000;
// A setting is tried if it might be faster than the best by more than this.
constexpr double kWorthTrying = 1.003;
// Of a size whose best setting takes so many times as long as the best, that one is not refined.
constexpr int kMostRefined = 2;
// Devices with which every number of replicated stages is tried.
constexpr int kAllStages = 8;

// Every microbatch of a step; `busy`: what its lanes do in it.
Outcome SimulateWhole(const Baseline& baseline, const LayerCosts& costs, const Setting& setting,
                      std::vector<Nanos>* busy) {
  Simulation simulation(costs);
  baseline.schedule(setting, &simulation);
  simulation.timeline.Run();
  const int step = setting.steps - 1;
  Outcome outcome;
  outcome.name = baseline.name;
  outcome.remark = baseline.remark;
  outcome.microbatch_size = costs.microbatch();
  outcome.recompute = setting.recompute;
  *busy = simulation.timeline.BusyOf(step);
  outcome.step = simulation.timeline.StepEnd(step) - simulation.timeline.StepEnd(step - 1);
  const StepBytes& bytes = simulation.timeline.BytesOf(step);
  for (int traffic = 0; traffic < kTrafficClasses; ++traffic) {
    outcome.bytes[static_cast<size_t>(traffic)] = bytes.of(static_cast<Traffic>(traffic));
  }
  outcome.host_link_bytes = bytes.host_links();
  outcome.peer_bytes = bytes.peer();
  outcome.host_peak = simulation.host;
  for (const DeviceProgram& device : simulation.devices) {
    const DeviceMemory& memory = device.memory();
    outcome.device_peak = std::max(outcome.device_peak, memory.peak());
    outcome.host_peak += memory.host_peak();
    if (!memory.shortage() || memory.shortage()->missing() <= outcome.missing) continue;
    const Shortage& shortage = *memory.shortage();
    outcome.obstacle = Obstacle::kDeviceMemory;
    outcome.missing = shortage.missing();
    outcome.reason =
        absl::StrCat("device ", device.device(), " lacks ", FormatBytes(shortage.missing()), ": ",
                     shortage.what, " needs ", FormatBytes(shortage.needed), " of ",
                     FormatBytes(shortage.capacity), ", microbatches of ", costs.microbatch());
  }
  return outcome;
}

// a at x = 0, b at x = 1.
int64_t Extend(int64_t a, int64_t b, double x) {
  return a + static_cast<int64_t>(static_cast<double>(b - a) * x);
}

// Baselines are not charged for issuing commands.
std::vector<plan::LaneWork> WorkOf(const std::vector<Nanos>& busy) {
  std::vector<plan::LaneWork> work;
  for (Nanos each : busy) work.push_back({each});
  return work;
}

// A step is as long as what is busiest in it, and says that.
void Bind(const LayerCosts& costs, const std::vector<Nanos>& busy, Outcome* outcome) {
  const plan::LaneResources resources = costs.resources();
  outcome->step = std::max(outcome->step, plan::BusiestResource(resources, WorkOf(busy)));
  const Busiest busiest = BusiestOf(resources, busy, costs.num_devices(), outcome->step);
  outcome->binds = busiest.text;
  outcome->busiest_share = busiest.share;
}

void CheckHost(const plan::MachineSpec& machine, Outcome* outcome) {
  const Bytes has = machine.host_memory;
  if (!outcome->fits() || has.count() == 0 || outcome->host_peak <= has) return;
  outcome->obstacle = Obstacle::kHostMemory;
  outcome->missing = outcome->host_peak - has;
  outcome->reason = absl::StrCat("the host lacks ", FormatBytes(outcome->missing), ": it needs ",
                                 FormatBytes(outcome->host_peak), " of ", FormatBytes(has));
}

// Ascending; of many, some.
std::vector<int64_t> SizesToTry(int64_t share, int64_t given) {
  if (given > 0) return {given};
  std::vector<int64_t> all;
  for (int64_t size = 1; size <= share; ++size) {
    if (share % size == 0) all.push_back(size);
  }
  if (all.size() <= kMostSizes) return all;
  std::vector<int64_t> some;
  for (size_t i = 0; i < kMostSizes; ++i)
    some.push_back(all[i * (all.size() - 1) / (kMostSizes - 1)]);
  return some;
}

Outcome DoesNotDivide(const Baseline& baseline, std::string reason) {
  Outcome outcome;
  outcome.name = baseline.name;
  outcome.remark = baseline.remark;
  outcome.obstacle = Obstacle::kBatch;
  outcome.reason = std::move(reason);
  return outcome;
}

// Sizes that lack the host's memory are better than those that do not even fit a device: what a row
// says is then what keeps the system from running at all.
bool Better(const Outcome& a, const Outcome& b) {
  const auto rank = [](const Outcome& o) {
    return o.fits() ? 0 : o.obstacle == Obstacle::kHostMemory ? 1 : 2;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return a.fits() ? a.step < b.step : a.missing < b.missing;
}

// Setting::stages: one for each device, and where stages are replicated, fewer. Of many devices
// only numbers that divide them are tried.
std::vector<int> StagesToTry(const Baseline& baseline, const LayerCosts& layers) {
  std::vector<int> stages = {0};
  const int devices = layers.num_devices();
  for (int s = 2; baseline.replicates_stages && s <= std::min(devices - 1, layers.num_layers());
       ++s) {
    if (devices <= kAllStages || devices % s == 0) stages.push_back(s);
  }
  return stages;
}

// All that a baseline tries at one microbatch size.
std::vector<Setting> SettingsToTry(const Baseline& baseline, const LayerCosts& layers,
                                   int microbatches) {
  std::vector<Setting> settings = {{.microbatches = microbatches}};
  // Each of the settings so far with each of the values.
  const auto with = [&settings](const auto& values, auto set) {
    std::vector<Setting> more;
    for (const Setting& setting : settings) {
      for (const auto& value : values) set(value, &more.emplace_back(setting));
    }
    settings = std::move(more);
  };
  with(baseline.recompute, [](Recompute value, Setting* s) { s->recompute = value; });
  with(StagesToTry(baseline, layers), [](int value, Setting* s) { s->stages = value; });
  with(baseline.reshards_after_forward,
       [](bool value, Setting* s) { s->reshards_after_forward = value; });
  with(baseline.gradients, [](GradientPolicy value, Setting* s) { s->gradients = value; });
  for (Setting& setting : settings) {
    setting.paging = {.lookahead = baseline.lookahead,
                      .writes_back_ahead = baseline.may_write_back_ahead};
  }
  return settings;
}

// A setting that was tried.
struct Tried {
  Setting setting;
  Outcome outcome;
};

bool BetterTried(const Tried& a, const Tried& b) { return Better(a.outcome, b.outcome); }

// Of those from `first` on.
const Tried& BestOf(const std::vector<Tried>& tried, size_t first = 0) {
  return *std::min_element(tried.begin() + static_cast<int64_t>(first), tried.end(), BetterTried);
}

// Whether the setting may be faster than all of `tried`, by more than kWorthTrying gives up.
bool IsWorthTrying(const Baseline& baseline, const LayerCosts& layers, const Setting& setting,
                   const std::vector<Tried>& tried) {
  if (tried.empty()) return true;
  const Outcome& best = BestOf(tried).outcome;
  if (!best.fits()) return true;
  const Nanos least = LeastComputing(layers, setting, baseline.data_parallel);
  return best.step.seconds() > least.seconds() * kWorthTrying;
}

// Changes of the best setting of a size, one after the other, each on top of those that helped.
void TryRefinements(const Baseline& baseline, const LayerCosts& layers, Tried best,
                    std::vector<Tried>* tried) {
  const auto attempt = [&](auto change) {
    Tried other = best;
    change(&other.setting);
    if (!IsWorthTrying(baseline, layers, other.setting, *tried)) return;
    other.outcome = Simulate(baseline, layers, other.setting);
    tried->push_back(other);
    if (BetterTried(other, best)) best = std::move(other);
  };
  if (baseline.may_keep_shares && layers.num_devices() > 1) {
    attempt([](Setting* s) { s->weights_on_host = false; });
  }
  if (!baseline.may_recompute_some || best.setting.recompute != Recompute::kLayers) return;
  for (int quarters : {2, 1, 3}) {
    attempt([quarters](Setting* s) { s->recomputed_quarters = quarters; });
  }
}

// Whether all that could be worth it were tried; else what is left out is at most so little faster
// than another (kWorthTrying).
bool TryAll(const Baseline& baseline, const LayerCosts& layers, int microbatches,
            std::vector<Tried>* tried) {
  bool all = true;
  const size_t before = tried->size();
  for (const Setting& setting : SettingsToTry(baseline, layers, microbatches)) {
    // Reducing is then nothing.
    if (setting.gradients == GradientPolicy::kReduceOnce && layers.num_devices() == 1) continue;
    // Where gradients fit added up, leaving each time is never faster, unless their room keeps
    // weights that would have to be loaded.
    if (setting.gradients == GradientPolicy::kLeaveEachTime && tried->back().outcome.fits() &&
        !baseline.caches_weights) {
      continue;
    }
    // Who recomputes all layers may recompute some of them.
    Setting quickest = setting;
    if (baseline.may_recompute_some) quickest.recomputed_quarters = 1;
    if (!IsWorthTrying(baseline, layers, quickest, *tried)) {
      all = false;
      continue;
    }
    tried->push_back({setting, Simulate(baseline, layers, setting)});
  }
  if (tried->size() == before) return all;
  const Tried& best = BestOf(*tried, before);
  if (best.outcome.fits() && best.outcome.step <= BestOf(*tried).outcome.step * kMostRefined) {
    TryRefinements(baseline, layers, best, tried);
  }
  return all;
}

std::string ResourceName(command::Lane lane, const std::vector<int>& devices) {
  std::string of = absl::StrCat("device ", devices.front());
  if (devices.size() > 1) of = absl::StrCat("devices ", devices.front(), "-", devices.back());
  switch (lane.kind) {
    case command::LaneKind::kCompute:
      return absl::StrCat("compute, ", of);
    case command::LaneKind::kH2DBulk:
    case command::LaneKind::kH2DStream:
      return absl::StrCat("link from the host, ", of);
    case command::LaneKind::kD2H:
      return absl::StrCat("link to the host, ", of);
    case command::LaneKind::kP2P:
      return absl::StrCat("link to other devices, ", of);
    case command::LaneKind::kHostCompute:
      return "the host's updates";
    case command::LaneKind::kHostIo:
      return "the host's data";
  }
  return "";
}

constexpr const char* kOld = "weights are one step old";

// Whose device memory is virtualised.
std::vector<Baseline> VirtualisedBaselines() {
  const std::vector<Recompute> nothing = {Recompute::kNothing}, layers = {Recompute::kLayers};
  const std::vector<Recompute> in_stages = {Recompute::kLayers, Recompute::kStage};
  return {
      {.name = "dp-swap", .schedule = DpSwap, .recompute = nothing, .may_write_back_ahead = true},
      {.name = "dp-swap, recompute",
       .schedule = DpSwap,
       .recompute = layers,
       .may_write_back_ahead = true},
      {.name = "gpipe-swap",
       .schedule = GpipeSwap,
       .data_parallel = false,
       .recompute = nothing,
       .may_write_back_ahead = true},
      {.name = "gpipe-swap, recompute",
       .schedule = GpipeSwap,
       .data_parallel = false,
       .recompute = in_stages,
       .may_write_back_ahead = true},
      {.name = "1f1b-swap",
       .schedule = OneForwardOneBackwardSwap,
       .remark = kOld,
       .data_parallel = false,
       .recompute = nothing,
       .replicates_stages = true,
       .may_write_back_ahead = true},
      {.name = "1f1b-swap, recompute",
       .schedule = OneForwardOneBackwardSwap,
       .remark = kOld,
       .data_parallel = false,
       .recompute = in_stages,
       .replicates_stages = true,
       .may_write_back_ahead = true},
      {.name = "1f1b-flush-swap",
       .schedule = OneForwardOneBackwardFlushSwap,
       .data_parallel = false,
       .recompute = nothing,
       .replicates_stages = true,
       .may_write_back_ahead = true},
      {.name = "1f1b-flush-swap, recompute",
       .schedule = OneForwardOneBackwardFlushSwap,
       .data_parallel = false,
       .recompute = in_stages,
       .replicates_stages = true,
       .may_write_back_ahead = true},
  };
}

// Whose optimizer runs on the host.
std::vector<Baseline> HostOptimizerBaselines() {
  const std::vector<GradientPolicy> leave = {GradientPolicy::kLeaveOnce,
                                             GradientPolicy::kLeaveEachTime};
  const std::vector<GradientPolicy> reduce_or_leave = {
      GradientPolicy::kReduceOnce, GradientPolicy::kLeaveOnce, GradientPolicy::kLeaveEachTime};
  return {
      {.name = "zero-offload",
       .schedule = ZeroOffload,
       .gradients = reduce_or_leave,
       .may_recompute_some = true},
      {.name = "zero-offload, delayed update",
       .schedule = ZeroOffloadDelayed,
       .remark = kOld,
       .gradients = reduce_or_leave,
       .may_recompute_some = true},
      {.name = "zero-infinity",
       .schedule = ZeroInfinity,
       .gradients = leave,
       .caches_weights = true,
       .may_recompute_some = true,
       .may_keep_shares = true},
      {.name = "super-offload",
       .schedule = SuperOffload,
       .gradients = leave,
       .caches_weights = true,
       .may_recompute_some = true,
       .may_keep_shares = true},
      {.name = "fsdp-offload",
       .schedule = FsdpOffload,
       .gradients = reduce_or_leave,
       .reshards_after_forward = {false, true},
       .may_recompute_some = true},
  };
}

}  // namespace

const std::vector<Baseline>& AllBaselines() {
  static const std::vector<Baseline> all = [] {
    std::vector<Baseline> baselines = VirtualisedBaselines();
    for (Baseline& baseline : HostOptimizerBaselines()) baselines.push_back(std::move(baseline));
    return baselines;
  }();
  return all;
}

const char* ToString(Obstacle obstacle) {
  switch (obstacle) {
    case Obstacle::kNone:
      return "";
    case Obstacle::kBatch:
      return "batch";
    case Obstacle::kDeviceMemory:
      return "device_memory";
    case Obstacle::kHostMemory:
      return "host_memory";
  }
  return "";
}

Outcome Simulate(const Baseline& baseline, const LayerCosts& costs, const Setting& setting) {
  const int devices = baseline.data_parallel ? costs.num_devices() : 1;
  const int64_t tasks_of_one = int64_t{2} * costs.num_layers() * devices;
  // Pipelines need many microbatches to show what one more costs.
  const auto most = static_cast<int>(
      std::max<int64_t>(kMostTasks / tasks_of_one, int64_t{4} * costs.num_devices()));
  Outcome outcome;
  std::vector<Nanos> busy;
  if (setting.microbatches <= most) {
    outcome = SimulateWhole(baseline, costs, setting, &busy);
  } else {
    Setting few = setting, more = setting;
    few.microbatches = most / 2;
    more.microbatches = most;
    std::vector<Nanos> busy_before;
    const Outcome shorter = SimulateWhole(baseline, costs, few, &busy_before);
    outcome = SimulateWhole(baseline, costs, more, &busy);
    const double x = static_cast<double>(setting.microbatches - few.microbatches) /
                     (more.microbatches - few.microbatches);
    outcome.step = Nanos(Extend(shorter.step.count(), outcome.step.count(), x));
    for (size_t lane = 0; lane < busy.size(); ++lane) {
      busy[lane] = Nanos(Extend(busy_before[lane].count(), busy[lane].count(), x));
    }
    for (size_t t = 0; t < outcome.bytes.size(); ++t) {
      outcome.bytes[t] = Extend(shorter.bytes[t], outcome.bytes[t], x);
    }
    outcome.host_link_bytes = Extend(shorter.host_link_bytes, outcome.host_link_bytes, x);
    outcome.peer_bytes = Extend(shorter.peer_bytes, outcome.peer_bytes, x);
    outcome.host_peak = Bytes(Extend(shorter.host_peak.count(), outcome.host_peak.count(), x));
  }
  Bind(costs, busy, &outcome);
  CheckHost(costs.machine(), &outcome);
  return outcome;
}

Outcome Best(const Baseline& baseline, const model::ModelSpec& model, const job::JobSpec& job,
             const plan::MachineSpec& machine, const dispatch::CostFactory& costs) {
  const auto devices = static_cast<int64_t>(machine.devices.size());
  const int64_t batch = job.global_batch_size;
  if (baseline.data_parallel && batch % devices != 0) {
    return DoesNotDivide(baseline, absl::StrCat("a batch of ", batch, " does not divide over ",
                                                devices, " devices"));
  }
  const int64_t share = baseline.data_parallel ? batch / devices : batch;
  if (job.micro_batch_size > 0 && share % job.micro_batch_size != 0) {
    return DoesNotDivide(
        baseline, absl::StrCat("a device's share of ", share,
                               " does not divide into microbatches of ", job.micro_batch_size));
  }
  std::vector<Tried> tried;
  for (int64_t size : SizesToTry(share, job.micro_batch_size)) {
    const LayerCosts layers(model, job, machine, costs, size);
    if (!layers.known()) continue;
    const size_t before = tried.size();
    const bool all = TryAll(baseline, layers, static_cast<int>(share / size), &tried);
    // A larger microbatch needs more of a device, never less.
    const bool none_fits =
        all && tried.size() > before &&
        std::all_of(tried.begin() + static_cast<int64_t>(before), tried.end(),
                    [](const Tried& t) { return t.outcome.obstacle == Obstacle::kDeviceMemory; });
    if (none_fits) break;
  }
  if (tried.empty()) {
    return DoesNotDivide(baseline,
                         absl::StrCat("no time is known of a microbatch that divides ", share));
  }
  Tried best = BestOf(tried);
  if (!best.setting.paging.writes_back_ahead || best.outcome.host_link_bytes == 0) {
    return best.outcome;
  }
  best.setting.paging.writes_back_ahead = false;
  const LayerCosts layers(model, job, machine, costs, best.outcome.microbatch_size);
  return std::min(best.outcome, Simulate(baseline, layers, best.setting), Better);
}

Busiest BusiestOf(const plan::LaneResources& resources, const std::vector<Nanos>& busy,
                  int num_devices, Nanos step) {
  const command::LaneTable lanes(num_devices);
  const auto count = static_cast<size_t>(lanes.size());
  const std::vector<Nanos> of_resource = plan::TimesOf(resources, WorkOf(busy));
  Busiest busiest;
  for (size_t r = 0; r < count; ++r) {
    const double share = of_resource[r].seconds() / std::max(step.seconds(), 1e-12);
    if (share <= busiest.share) continue;
    std::vector<int> devices;
    for (size_t lane = 0; lane < count; ++lane) {
      const int device = lanes.LaneAt(static_cast<int>(lane)).device;
      if (resources.of_lane[lane] != static_cast<int>(r)) continue;
      if (devices.empty() || devices.back() < device) devices.push_back(device);
    }
    busiest.share = share;
    busiest.text = absl::StrFormat(
        "%s %.0f%%", ResourceName(lanes.LaneAt(static_cast<int>(r)), devices), 100 * share);
  }
  return busiest;
}

}  // namespace harmony::baselines
