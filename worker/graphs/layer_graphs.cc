#include "worker/graphs/layer_graphs.h"

#include "common/base/status.h"
#include "common/io/model_graphs.h"
#include "worker/graphs/graph_file.h"

namespace harmony::worker {

absl::StatusOr<LayerGraphs> BindLayerGraphs(absl::string_view text, absl::string_view where,
                                            absl::string_view torch, c10::Device device) {
  HARMONY_ASSIGN_OR_RETURN(const GraphFile file, ParseGraphFile(text, where));
  LayerGraphs graphs;
  graphs.slots = file.slots;
  const auto bind = [&](Phase phase, bool without_outputs,
                        std::optional<Graph>& graph) -> absl::Status {
    const auto found = file.phases.find(phase);
    if (found == file.phases.end()) return absl::OkStatus();
    Graph::Options options;
    options.where = std::string(where);
    options.torch = std::string(torch);
    options.without_outputs = without_outputs;
    options.device = device;
    if (phase == Phase::kSaving && graphs.backward.has_value()) {
      options.saved_needs = graphs.backward->saved_needs();
    }
    HARMONY_ASSIGN_OR_RETURN(graph, Graph::Bind(found->second, phase, options));
    return absl::OkStatus();
  };
  // First: what the others save is for it.
  HARMONY_RETURN_IF_ERROR(bind(Phase::kBackward, false, graphs.backward));
  HARMONY_RETURN_IF_ERROR(bind(Phase::kForward, false, graphs.forward));
  HARMONY_RETURN_IF_ERROR(bind(Phase::kSaving, false, graphs.saving));
  HARMONY_RETURN_IF_ERROR(bind(Phase::kSaving, true, graphs.recomputing));
  HARMONY_RETURN_IF_ERROR(bind(Phase::kFused, false, graphs.fused));
  return graphs;
}

absl::StatusOr<std::shared_ptr<const LayerGraphs>> LoadLayerGraphs(const std::string& directory,
                                                                   const std::string& digest,
                                                                   absl::string_view torch,
                                                                   c10::Device device) {
  HARMONY_ASSIGN_OR_RETURN(const io::GraphText graph, io::ReadGraph(directory, digest));
  HARMONY_ASSIGN_OR_RETURN(LayerGraphs graphs,
                           BindLayerGraphs(graph.text, graph.path, torch, device));
  return std::make_shared<const LayerGraphs>(std::move(graphs));
}

}  // namespace harmony::worker
