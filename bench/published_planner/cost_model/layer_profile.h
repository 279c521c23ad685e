#pragma once

// A model as the published planner sees it: one row per layer, measured at several microbatch
// sizes. PURE. Times stay seconds in doubles here (not Nanos): published times are reproduced to
// the last digits.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::published {

// One phase (forward, or backward with the recompute in it) over the measured microbatch sizes.
struct PhaseProfile {
  std::vector<int64_t> microbatch;               // ascending
  std::vector<std::vector<double>> time_s;       // [layer][size]
  std::vector<std::vector<int64_t>> peak_bytes;  // [layer][size]; weights, tensors and workspace
};

// Layers in forward order, the last one is the loss.
struct LayerProfile {
  std::string model, sample, dtype, optimizer;
  std::vector<int64_t> param_bytes, grad_bytes;
  std::vector<int64_t> buffer_bytes;  // not trained, but travels with the weights
  std::vector<int64_t> optimizer_state_bytes;
  std::vector<double> update_time_s;  // one optimizer step on the CPU
  std::vector<int64_t> input_bytes_per_sample, output_bytes_per_sample;
  PhaseProfile forward, backward;

  int layers() const { return static_cast<int>(param_bytes.size()); }
};

// Lengths, signs, finiteness and order of everything above. InvalidArgument names the field and,
// where it helps, the layer and the size: "fwd.time_s[3][7] is -1".
absl::Status CheckProfile(const LayerProfile& profile);

// Every layer at one microbatch size.
struct PhaseAt {
  std::vector<double> time_s;
  std::vector<int64_t> peak_bytes;
};

// Whether `microbatch` lies within the measured sizes.
bool Covers(const PhaseProfile& phase, int64_t microbatch);

// A size between two measured ones is interpolated linearly, memory cut to a whole byte.
// OutOfRange for sizes outside; `name` is the phase in that message.
absl::StatusOr<PhaseAt> At(const PhaseProfile& phase, absl::string_view name, int64_t microbatch);

}  // namespace harmony::published
