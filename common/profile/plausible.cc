#include "common/profile/plausible.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace harmony::profile {
namespace {

// On a quiet machine of two cores, four profiles: layers 1.09 to 1.26, links 2.39 to 2.53. With one
// to five other programs running, five profiles: layers 1.09 to 3.1, links 15 to 43.
constexpr double kLayersUnderLoad = 2, kLinksUnderLoad = 6;

void Lower(Measured& time, double most) {
  if (time.median <= most) return;
  time.median = most;
  time.least = std::min(time.least, most);
}
void Lower(std::optional<Measured>& time, double most) {
  if (time) Lower(*time, most);
}
void Lower(std::optional<Measured>& time, const std::optional<Measured>& most) {
  if (most) Lower(time, most->median);
}

void Raise(Measured& rate, double least) {
  if (rate.median >= least) return;
  rate.median = least;
  rate.most = std::max(rate.most, least);
}

// `at_once`: links that were busy when all were.
void MakePlausible(LinkProfile& link, double at_once) {
  Raise(link.alone, std::max(link.duplex.median, link.together.median));
  Raise(link.duplex, link.alone.median / 2);
  Raise(link.together, link.alone.median / at_once);
}

void MakePlausible(std::vector<LayerSizeProfile>& sizes) {
  for (LayerSizeProfile& size : sizes) {
    if (!size.backward_inner) continue;
    const double inner = size.backward_inner->median;
    Lower(size.forward, inner);
    Lower(size.backward, inner);
    Lower(size.kept_backward, inner);
  }
  for (size_t i = sizes.size(); i-- > 1;) {
    const LayerSizeProfile& larger = sizes[i];
    LayerSizeProfile& smaller = sizes[i - 1];
    Lower(smaller.forward, larger.forward);
    Lower(smaller.backward, larger.backward.median);
    Lower(smaller.backward_inner, larger.backward_inner);
    Lower(smaller.keeping_forward, larger.keeping_forward);
    Lower(smaller.kept_backward, larger.kept_backward);
  }
}

// Of all that was repeated.
class Ratios {
 public:
  void Add(const Measured& measured) {
    if (measured.least == measured.most || measured.least <= 0) return;  // a model, or once
    all_.push_back(measured.most / measured.least);
  }
  void Add(const std::optional<Measured>& measured) {
    if (measured) Add(*measured);
  }
  double Median() {
    if (all_.empty()) return 1;
    const auto middle = all_.begin() + static_cast<std::ptrdiff_t>(all_.size() / 2);
    std::nth_element(all_.begin(), middle, all_.end());
    return *middle;
  }

 private:
  std::vector<double> all_;
};

}  // namespace

Profile Plausible(Profile profile) {
  const auto devices = static_cast<double>(profile.devices.size());
  for (DeviceProfile& device : profile.devices) {
    device.together = std::clamp(device.together, 1.0, devices);
    MakePlausible(device.h2d, devices * 2);
    MakePlausible(device.d2h, devices * 2);
    if (device.p2p) MakePlausible(*device.p2p, devices);
    for (LayerProfile& layer : device.layers) MakePlausible(layer.sizes);
  }
  return profile;
}

Spread SpreadOf(const Profile& profile) {
  Ratios layers, links;
  for (const DeviceProfile& device : profile.devices) {
    for (const LayerProfile& layer : device.layers) {
      for (const LayerSizeProfile& size : layer.sizes) {
        layers.Add(size.forward);
        layers.Add(size.backward);
        layers.Add(size.backward_inner);
        layers.Add(size.keeping_forward);
        layers.Add(size.kept_backward);
      }
    }
    for (const LinkProfile& link : {device.h2d, device.d2h, device.p2p.value_or(LinkProfile())}) {
      links.Add(link.alone);
      links.Add(link.duplex);
      links.Add(link.together);
    }
  }
  return {layers.Median(), links.Median()};
}

bool MeasuredUnderLoad(const Spread& spread) {
  return spread.layers > kLayersUnderLoad || spread.links > kLinksUnderLoad;
}

std::string DebugString(const Spread& spread) {
  std::vector<std::string> parts;
  if (spread.layers > kLayersUnderLoad) {
    parts.push_back(absl::StrFormat("%.2g times as long for a layer", spread.layers));
  }
  if (spread.links > kLinksUnderLoad) {
    parts.push_back(absl::StrFormat("%.2g times as long for a copy", spread.links));
  }
  return absl::StrCat("some repeats took ", absl::StrJoin(parts, " and "), " as others");
}

}  // namespace harmony::profile
