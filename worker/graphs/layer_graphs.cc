#include "worker/graphs/layer_graphs.h"

#include <string>

#include "common/base/status.h"

namespace harmony::worker {

absl::StatusOr<LayerGraphs> BindLayerGraphs(const graphs::GraphFile& file, absl::string_view where,
                                            absl::string_view torch, c10::Device device) {
  LayerGraphs graphs;
  graphs.slots = file.slots;
  const auto bind = [&](graphs::Phase phase, bool without_outputs,
                        std::optional<Graph>& graph) -> absl::Status {
    const auto found = file.phases.find(phase);
    if (found == file.phases.end()) return absl::OkStatus();
    Graph::Options options;
    options.where = std::string(where);
    options.torch = std::string(torch);
    options.without_outputs = without_outputs;
    options.device = device;
    if (phase == graphs::Phase::kSaving && graphs.backward.has_value()) {
      options.saved_needs = graphs.backward->saved_needs();
    }
    HARMONY_ASSIGN_OR_RETURN(graph, Graph::Bind(found->second, phase, options));
    return absl::OkStatus();
  };
  // First: what the others save is for it.
  HARMONY_RETURN_IF_ERROR(bind(graphs::Phase::kBackward, false, graphs.backward));
  HARMONY_RETURN_IF_ERROR(bind(graphs::Phase::kForward, false, graphs.forward));
  HARMONY_RETURN_IF_ERROR(bind(graphs::Phase::kSaving, false, graphs.saving));
  HARMONY_RETURN_IF_ERROR(bind(graphs::Phase::kSaving, true, graphs.recomputing));
  HARMONY_RETURN_IF_ERROR(bind(graphs::Phase::kFused, false, graphs.fused));
  return graphs;
}

}  // namespace harmony::worker
