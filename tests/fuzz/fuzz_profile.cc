// A profile: whatever is accepted is written as it was read, and all its times make sense.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/profile/profile_json.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = profile::ParseProfile(text, "P.json");
  if (!profile.ok()) {
    FUZZ_CHECK(!profile.status().message().empty());
    return 0;
  }
  FUZZ_CHECK(!profile->devices.empty());
  for (const profile::DeviceProfile& device : profile->devices) {
    FUZZ_CHECK(device.memory > Bytes() && device.h2d.alone.median > 0);
    for (const profile::LayerProfile& layer : device.layers) {
      for (int64_t samples : {1, 3, 1000}) {
        const double seconds = profile::InterpolateSeconds(
            layer.sizes, samples,
            [](const profile::LayerSizeProfile& each) { return each.backward.median; });
        FUZZ_CHECK(!std::isnan(seconds) && seconds >= 0);
      }
    }
  }
  const auto again = profile::ParseProfile(profile::ProfileToJson(*profile), "P.json");
  FUZZ_CHECK(again.ok());
  return 0;
}
