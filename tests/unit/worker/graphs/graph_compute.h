#pragma once

// Single phases, bound and run by tests.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/graphs/graph.h"

namespace harmony::worker {

// A graph of the phase `fused`, which may make anything, from lines as graph_text.h has them. Its
// file is "g", and PyTorch 9.9 made it.
absl::StatusOr<Graph> BindLines(const std::string& lines);

// The gradients that a graph makes, by index. `inputs`: the slots, then the number of samples where
// there is one.
using Made = std::map<int, at::Tensor>;
absl::StatusOr<Made> Compute(const std::string& lines, const std::vector<c10::IValue>& inputs);

// Numbers from one end to the other.
at::Tensor Ramp(at::IntArrayRef shape, double from = -1, double to = 1);

}  // namespace harmony::worker
