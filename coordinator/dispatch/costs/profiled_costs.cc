#include "coordinator/dispatch/costs/profiled_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/command/lane_kinds.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/plan/machine.h"

namespace harmony::dispatch {
namespace {

// Checkpoints depend on the disk and on what else it does; no step waits for one.
constexpr double kCheckpointBytesPerSecond = 1e9;

// Devices that together get the work of so much less than another core done are still held to take
// turns on the lower number: more is the error of the measurement.
constexpr double kPartOfACore = 0.25;

bool CopiedByCores(const profile::DeviceProfile& measured) {
  const auto devices = plan::ParseDevices(measured.spec);
  return devices.ok() && absl::c_all_of(*devices, std::mem_fn(&plan::DeviceSpec::copied_by_cores));
}

double ForwardOf(const profile::LayerSizeProfile& size) {
  return size.forward ? size.forward->median : 0;
}
double BackwardOf(const profile::LayerSizeProfile& size) { return size.backward.median; }
double InnerOf(const profile::LayerSizeProfile& size) {
  return size.backward_inner ? size.backward_inner->median : size.backward.median;
}

double KeepingForwardOf(const profile::LayerSizeProfile& size) {
  return size.keeping_forward ? size.keeping_forward->median : ForwardOf(size);
}
// Where it was not measured: what is left without the recompute.
double KeptBackwardOf(const profile::LayerSizeProfile& size) {
  if (size.kept_backward) return size.kept_backward->median;
  if (!size.backward_inner) return size.backward.median;  // the embedding recomputes nothing
  return std::max(size.backward_inner->median - ForwardOf(size), 0.0);
}

double Between(const std::vector<double>& sums, model::LayerRange range) {
  return sums[range.last + 1] - sums[range.first];
}

}  // namespace

ProfiledCosts::ProfiledCosts(const profile::Profile& profile, const model::ModelSpec& model,
                             const plan::Plan& plan)
    : profile_(profile), model_(model), plan_(plan), lanes_(static_cast<int>(plan.devices.size())) {
  const bool alone = plan.devices.size() == 1;
  for (const profile::DeviceProfile& measured : profile.devices) {
    Device device;
    device.slowdown = alone ? 1 : measured.together;
    device.h2d = measured.h2d;
    device.d2h = measured.d2h;
    device.p2p = measured.p2p.value_or(profile::LinkProfile());
    device.shares_root = plan.devices[devices_.size()].root > 0;
    for (int task_microbatches = 1; task_microbatches <= plan.num_microbatches;
         ++task_microbatches) {
      if (plan.num_microbatches % task_microbatches != 0) continue;
      const int64_t samples = plan.microbatch_size * task_microbatches;
      Sums sums = SumsOf(measured, samples);
      if (task_microbatches > 1) sums = {std::move(sums.forward), {}, {}, {}, {}, {}, {}};
      device.sums.emplace(samples, std::move(sums));
    }
    devices_.push_back(std::move(device));
  }
  FindCores();
}

void ProfiledCosts::FindCores() {
  plan::CoreSharing found;
  double slowdowns = 0;
  for (size_t d = 0; d < devices_.size(); ++d) {
    if (devices_[d].slowdown <= 1) continue;
    found.devices.push_back(static_cast<int>(d));
    slowdowns += devices_[d].slowdown;
  }
  if (found.devices.empty()) return;
  // n devices that each take s times as long get n / s of them done at a time. What a whole number
  // does not explain stays with each task.
  const auto count = static_cast<double>(found.devices.size());
  found.at_once = static_cast<int>(std::ceil(count * count / slowdowns - kPartOfACore));
  if (found.at_once >= static_cast<int>(count)) return;
  found.at_once = std::max(found.at_once, 1);
  for (int d : found.devices) devices_[static_cast<size_t>(d)].slowdown *= found.at_once / count;
  if (absl::c_all_of(profile_.devices, CopiedByCores)) {
    found.threads = std::max(profile_.compute_threads, 1);
  }
  cores_ = std::move(found);
}

ProfiledCosts::Sums ProfiledCosts::SumsOf(const profile::DeviceProfile& device,
                                          int64_t samples) const {
  struct Seconds {
    double forward, backward, inner, keeping, kept;
  };
  std::vector<Seconds> by_shape;
  std::vector<int> shape_of(model_.num_layers(), 0);
  for (const profile::LayerProfile& layer : device.layers) {
    for (int index : layer.layers) shape_of[index] = static_cast<int>(by_shape.size());
    by_shape.push_back({profile::InterpolateSeconds(layer.sizes, samples, ForwardOf),
                        profile::InterpolateSeconds(layer.sizes, samples, BackwardOf),
                        profile::InterpolateSeconds(layer.sizes, samples, InnerOf),
                        profile::InterpolateSeconds(layer.sizes, samples, KeepingForwardOf),
                        profile::InterpolateSeconds(layer.sizes, samples, KeptBackwardOf)});
  }
  Sums sums{{0}, {0}, {0}, {0}, {0}, {0}, {}};
  for (int shape : shape_of) {
    const Seconds& seconds = by_shape[shape];
    sums.forward.push_back(sums.forward.back() + seconds.forward);
    sums.backward_inner.push_back(sums.backward_inner.back() + seconds.inner);
    sums.keeping_forward.push_back(sums.keeping_forward.back() + seconds.keeping);
    sums.kept_backward.push_back(sums.kept_backward.back() + seconds.kept);
    sums.zero.push_back(sums.zero.back() + device.layers[shape].zero.median);
    sums.check.push_back(sums.check.back() + device.layers[shape].check.median);
    sums.backward.push_back(seconds.backward);
  }
  return sums;
}

double ProfiledCosts::ComputeSeconds(const Device& device, const Sums& sums,
                                     const command::ComputeTask& task) {
  const model::LayerRange range = task.layers;
  double seconds = 0;
  switch (task.kind) {
    case command::TaskKind::kForward:
      seconds = Between(task.kept ? sums.keeping_forward : sums.forward, range);
      break;
    case command::TaskKind::kBackward:
      seconds = task.kept ? Between(sums.kept_backward, range)
                          : Between(sums.backward_inner, {range.first, range.last - 1}) +
                                sums.backward[range.last];
      break;
    case command::TaskKind::kForwardBackward:
      // As the backward of its blocks; the head is the last layer. The embedding's output, which a
      // backward finds in its stash, is made here.
      seconds =
          Between(sums.backward_inner, {range.first, range.last - 1}) + sums.backward[range.last];
      if (range.first == 0) seconds += Between(sums.forward, {0, 0});
      break;
  }
  if (task.kind != command::TaskKind::kForward) {
    if (task.first_microbatch) seconds += Between(sums.zero, range);
    if (task.stores_gradients) seconds += Between(sums.check, range);
  }
  return seconds * device.slowdown;
}

double ProfiledCosts::TransferSeconds(const Device& device, command::LaneKind lane,
                                      Bytes size) const {
  const command::LaneLink kind = command::TraitsOf(lane).link;
  const profile::LinkProfile& link = command::OfLink(kind, device.h2d, device.d2h, device.p2p);
  const bool takes_turns = device.shares_root && kind != command::LaneLink::kP2P;
  const profile::Measured& rate = devices_.size() > 1 && !takes_turns ? link.together : link.duplex;
  return link.latency.median + static_cast<double>(size.count()) / rate.median;
}

double ProfiledCosts::HostSeconds(const command::HostTask& task) const {
  const profile::HostProfile& host = profile_.host;
  const auto at = [](Bytes size, double rate) { return static_cast<double>(size.count()) / rate; };
  const auto gradients = [&](const model::ParamBlock& block) {
    return block.gradient_bytes * static_cast<int64_t>(task.gradient_records.size());
  };
  switch (task.kind) {
    case command::HostTaskKind::kUpdate: {
      const model::ParamBlock& block = model_.blocks[task.block];
      // UpdateBytes counts one part of each.
      const Bytes one = block.gradient_bytes * static_cast<int64_t>(block.references.size());
      const Bytes more = gradients(block) - one;
      return host.task.median + at(profile::UpdateBytes(block, plan_.optimizer_moments) + more,
                                   host.update_rate.median);
    }
    case command::HostTaskKind::kNorm:
      return host.task.median + at(gradients(model_.blocks[task.block]), host.norm_rate.median);
    case command::HostTaskKind::kLoadBatch:
      return host.task.median +
             at(model::LayOutBatch(model_, plan_.global_batch()).size, host.batch_rate.median);
    case command::HostTaskKind::kInitialize:
    case command::HostTaskKind::kCheckpoint: {
      const Bytes state = command::PersistentBytes(model_, plan_.optimizer_moments);
      return at(state, task.kind == command::HostTaskKind::kInitialize ? host.initialize_rate.median
                                                                       : kCheckpointBytesPerSecond);
    }
    case command::HostTaskKind::kStepScalars:
    case command::HostTaskKind::kClip:
      break;
  }
  return host.task.median;
}

Nanos ProfiledCosts::Duration(const command::Command& command) const {
  const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
  double seconds = profile_.host.wake.median;
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    const Device& device = devices_[lane.device];
    const auto sums = device.sums.find(task->samples);
    const bool known = sums != device.sums.end() && (task->kind == command::TaskKind::kForward ||
                                                     !sums->second.backward.empty());
    seconds +=
        known ? ComputeSeconds(device, sums->second, *task)
              : ComputeSeconds(device, SumsOf(profile_.devices[lane.device], task->samples), *task);
  } else if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    seconds += TransferSeconds(devices_[lane.device], lane.kind, copy->size);
  } else {
    seconds += HostSeconds(std::get<command::HostTask>(command.body));
  }
  return Nanos::FromSeconds(seconds);
}

std::unique_ptr<const ScaledCosts> MakeCosts(const profile::Profile* profile,
                                             const CostScales& scales,
                                             const model::ModelSpec& model, const plan::Plan& plan,
                                             const std::vector<plan::DeviceSpec>& devices) {
  std::unique_ptr<const CostModel> base;
  if (profile == nullptr) {
    base = std::make_unique<AnalyticCosts>(model, plan, devices);
  } else {
    base = std::make_unique<ProfiledCosts>(*profile, model, plan);
  }
  return std::make_unique<ScaledCosts>(std::move(base), scales,
                                       static_cast<int>(plan.devices.size()));
}

CostFactory ProfiledCostFactory(std::shared_ptr<const profile::Profile> profile,
                                const model::ModelSpec& model) {
  return [profile = std::move(profile), &model](const plan::Plan& plan) {
    return std::make_unique<ProfiledCosts>(*profile, model, plan);
  };
}

}  // namespace harmony::dispatch
