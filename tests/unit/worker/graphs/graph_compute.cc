#include "tests/unit/worker/graphs/graph_compute.h"

#include <ATen/ops/linspace.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "tests/unit/common/graphs/graph_text.h"

namespace harmony::worker {

absl::StatusOr<Graph> BindLines(const std::string& lines) {
  const std::string with_loss = lines.find("loss 0 =") == std::string::npos
                                    ? lines +
                                          "\nzero = aten::zeros([], float32, null, "
                                          "cpu, null)\nloss 0 = zero"
                                    : lines;
  const auto file = graphs::ParseGraphFile(graphs::GraphJson({{"fused", with_loss}}), "g");
  if (!file.ok()) return file.status();
  Graph::Options options;
  options.where = "g";
  options.torch = "9.9";
  return Graph::Bind(file->phases.at(graphs::Phase::kFused), graphs::Phase::kFused, options);
}

absl::StatusOr<Made> Compute(const std::string& lines, const std::vector<c10::IValue>& inputs) {
  const auto graph = BindLines(lines);
  if (!graph.ok()) return graph.status();
  std::vector<c10::IValue> needed;
  for (const graphs::PhaseInput& input : graph->inputs()) {
    const bool slot = input.kind == graphs::InputKind::kSlot;
    needed.push_back(slot ? inputs[static_cast<size_t>(input.index)] : inputs.back());
  }
  Made made;
  const absl::Status status =
      graph->Run(std::move(needed), [&](const graphs::PhaseOutput& output, at::Tensor tensor) {
        if (output.kind == graphs::OutputKind::kGradient) made[output.index] = std::move(tensor);
      });
  if (!status.ok()) return status;
  return made;
}

at::Tensor Ramp(at::IntArrayRef shape, double from, double to) {
  return at::linspace(from, to, c10::multiply_integers(shape)).view(shape);
}

}  // namespace harmony::worker
