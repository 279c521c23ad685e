#pragma once

// A profile with round numbers of any model on any devices: what tests of its users start from.

#include <vector>

#include "common/model/model_sizes.h"
#include "common/profile/profile.h"

namespace harmony::testing_support {

// Forward of a layer with number n takes 1 ms (n counted in shapes, from 1: n ms) a sequence and
// 0.5 ms a task; backward thrice that; a block inside a group 1 ms more. Links: 1 ms and 1 GB/s.
inline profile::Profile SampleProfile(const model::ModelSpec& model, const job::JobSpec& job,
                                      const std::vector<plan::DeviceSpec>& devices) {
  profile::Profile profile = profile::BlankProfile(model, job);
  profile.versions = {"0", "2", "AVX2", "a processor", 2};
  profile.host = {profile::OptimizerName(job), profile::Exactly(4e9), profile::Exactly(8e9),
                  profile::Exactly(1e9),       profile::Exactly(2e9), profile::Exactly(50e-6),
                  profile::Exactly(20e-6)};
  const profile::LinkProfile link{profile::Exactly(1e-3), profile::Exactly(1e9),
                                  profile::Exactly(8e8), profile::Exactly(5e8)};
  for (const plan::DeviceSpec& spec : devices) {
    profile::DeviceProfile device;
    device.spec = ToString(spec);
    device.memory = spec.memory;
    device.h2d = device.d2h = link;
    if (devices.size() > 1) device.p2p = link;
    double ms = 0;
    for (const profile::LayerShape& shape : profile::DistinctLayers(model)) {
      ms += 1e-3;
      profile::LayerProfile layer;
      layer.kind = shape.name;
      layer.layers = shape.layers;
      layer.parameter_bytes = model::LayerParameterBytes(model, shape.layers[0]);
      layer.input_bytes = model::LayerInputBytes(model, shape.layers[0], 1);
      layer.zero = profile::Exactly(2e-3);
      layer.check = profile::Exactly(1e-3);
      for (int64_t samples : {1, 2, 4}) {
        profile::LayerSizeProfile size;
        size.samples = samples;
        const double forward = ms * static_cast<double>(samples) + 0.5e-3;
        if (!profile::RunsFused(model, shape.layers[0])) size.forward = profile::Exactly(forward);
        size.backward = profile::Exactly(3 * forward);
        if (profile::Recomputes(model, shape.layers[0]))
          size.backward_inner = profile::Exactly(3 * forward + 1e-3);
        size.forward_workspace = KiB(samples);
        size.backward_workspace = KiB(3 * samples);
        size.activation_bytes = KiB(profile::Recomputes(model, shape.layers[0]) ? samples : 0);
        layer.sizes.push_back(size);
      }
      device.layers.push_back(std::move(layer));
    }
    profile.devices.push_back(std::move(device));
  }
  return profile;
}

}  // namespace harmony::testing_support
