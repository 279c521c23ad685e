#pragma once

// Graph files in a form that tests can be read in: a line for each input, operation and output.
//
//   x = slot 0
//   t = aten::transpose.int(%x, 0, 1)
//   high, _ = aten::max.dim(%t, 0, false)
//   [a, b] = aten::split.Tensor(%high, 2, 0)
//   y = aten::mul.Tensor(%a, 0.5)
//   output 0 = y
//
// Numbers with a point are floats, true and false flags, float32 and its like types, cpu the
// device; everything else in parentheses is JSON, or a list of such.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace harmony::graphs {

// The JSON of one phase.
std::string PhaseJson(absl::string_view lines);

// The JSON of a slot, its shape as a file has it: "[\"n\", 3]".
std::string SlotJson(absl::string_view shape, absl::string_view dtype = "float32");

// The JSON of a file with these phases, by name; without slots, with eight of shape [n].
std::string GraphJson(const std::map<std::string, std::string>& lines_by_phase,
                      std::vector<std::string> slots = {});

}  // namespace harmony::graphs
