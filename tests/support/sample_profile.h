#pragma once

// A profile with round numbers of any model on any devices: what tests of its users start from.

#include <vector>

#include "common/model/model_sizes.h"
#include "common/plan/profile.h"

namespace harmony::testing {

// Forward of a layer with number n takes 1 ms (n counted in shapes, from 1: n ms) a sequence and
// 0.5 ms a task; backward thrice that; a block inside a group 1 ms more. Links: 1 ms and 1 GB/s.
inline Profile SampleProfile(const ModelSpec& model, const JobSpec& job,
                             const std::vector<DeviceSpec>& devices) {
  Profile profile = BlankProfile(model, job);
  profile.versions = {"0", "2", "AVX2", "a processor", 2};
  profile.host = {OptimizerName(job.optim), Exactly(4e9),  Exactly(8e9), Exactly(1e9), Exactly(2e9),
                  Exactly(50e-6),           Exactly(20e-6)};
  const LinkProfile link{Exactly(1e-3), Exactly(1e9), Exactly(8e8), Exactly(5e8)};
  for (const DeviceSpec& spec : devices) {
    DeviceProfile device;
    device.spec = ToString(spec);
    device.memory = spec.memory;
    device.h2d = device.d2h = link;
    if (devices.size() > 1) device.p2p = link;
    double ms = 0;
    for (const LayerShape& shape : DistinctLayers(model)) {
      ms += 1e-3;
      LayerProfile layer;
      layer.kind = shape.name;
      layer.layers = shape.layers;
      layer.parameter_bytes = LayerParameterBytes(model, shape.layers[0]);
      layer.input_bytes = LayerInputBytes(model, shape.layers[0], 1);
      layer.zero = Exactly(2e-3);
      layer.check = Exactly(1e-3);
      for (int64_t samples : {1, 2, 4}) {
        LayerSizeProfile size;
        size.samples = samples;
        const double forward = ms * static_cast<double>(samples) + 0.5e-3;
        if (!RunsFused(model, shape.layers[0])) size.forward = Exactly(forward);
        size.backward = Exactly(3 * forward);
        if (Recomputes(model, shape.layers[0])) size.backward_inner = Exactly(3 * forward + 1e-3);
        size.forward_workspace = KiB(samples);
        size.backward_workspace = KiB(3 * samples);
        size.activation_bytes = KiB(Recomputes(model, shape.layers[0]) ? samples : 0);
        layer.sizes.push_back(size);
      }
      device.layers.push_back(std::move(layer));
    }
    profile.devices.push_back(std::move(device));
  }
  return profile;
}

}  // namespace harmony::testing
