// Any bytes as the model.json of an exported model: an error, or a description that holds together.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/model/exported_model.h"
#include "common/model/model_sizes.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace harmony;

void CheckDescription(const model::ExportedModel& exported) {
  const model::ModelSpec model = model::BuildModelSpec(exported);
  FUZZ_CHECK(model.boundaries.size() == model.layers.size() + 1);
  FUZZ_CHECK(model.boundaries.front().empty() && model.boundaries.back().empty());
  for (const model::LayerSpec& layer : model.layers) {
    FUZZ_CHECK(!layer.references.empty());
    const model::LayerRange range{layer.index, layer.index};
    FUZZ_CHECK(model::WorkspacePeak(model, model::WorkspaceOf::kBackward, range, 3, 2) <=
               model::WorkspaceBound(model, model::WorkspaceOf::kBackward, range, 3));
  }
  const std::vector<model::ParameterPlace> places = model::PlacesOfParameters(exported);
  FUZZ_CHECK(places.size() == exported.parameters.size());
  for (size_t i = 0; i < places.size(); ++i) {
    FUZZ_CHECK(model.blocks[places[i].block].tensors[places[i].tensor].name ==
               exported.parameters[i].name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto exported = model::ParseExportedModel(text, "model.json");
  if (!exported.ok()) return 0;
  const model::SequenceLengths& lengths = exported->sequence_length;
  for (const int64_t length : {lengths.least, lengths.least / 2 + lengths.most / 2, lengths.most}) {
    const model::ExportedModel chosen = exported->AtLength(length);
    for (const model::ExportedValue& value : chosen.values) {
      for (const int64_t extent : value.tensor.ShapeFor(1)) FUZZ_CHECK(extent >= 0);
    }
    FUZZ_CHECK(chosen.labels_per_sample.number() > 0);
    CheckDescription(chosen);
  }
  return 0;
}
