#pragma once

// Whether the graphs of a layer fit what model.json says of the layer: the one check, which a job's
// submission and every worker make. PURE.

#include "absl/status/status.h"
#include "common/graphs/graph_file.h"
#include "common/model/exported_model.h"

namespace harmony::graphs {

// InvalidArgument, beginning with the layer's name, when a graph has other slots than the layer,
// makes what the layer has no place for, or leaves out what it has to make. REQUIRES: 0 <= layer <
// the number of layers.
absl::Status CheckLayer(const model::ExportedModel& exported, int layer, const GraphFile& file);

}  // namespace harmony::graphs
