// config.json: whatever is accepted gives a model whose sizes make sense.

#include <cstddef>
#include <cstdint>

#include "common/model/families/causal_lm.h"
#include "common/model/model_config.h"
#include "common/model/model_sizes.h"
#include "common/model/model_spec.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = model::ParseModelConfig(text, "config.json");
  if (!config.ok()) {
    FUZZ_CHECK(!config.status().message().empty());
    return 0;
  }
  if (config->num_layers > 50) return 0;  // only slow
  const model::ModelSpec model = model::BuildModelSpec(*config, 1 << 24);
  FUZZ_CHECK(model.parameter_count() > 0);
  FUZZ_CHECK(model.tied_parameter_count() < model.parameter_count());
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      FUZZ_CHECK(tensor.elements > 0 && tensor.weight.offset >= Bytes());
      FUZZ_CHECK(tensor.weight.first_element() + tensor.elements <= block.elements());
    }
  }
  const model::LayerRange all{0, model.num_layers() - 1};
  FUZZ_CHECK(model::WorkspaceBound(model, model::WorkspaceOf::kBackward, all, 1 << 20) > Bytes(0));
  FUZZ_CHECK(model::WorkspaceBound(model, model::WorkspaceOf::kForward, all, 1) > Bytes(0));
  FUZZ_CHECK(model::ComputeFootprint(model, 1 << 20, 2).total() > Bytes(0));
  (void)model::CheckSequenceLength(*config, 1024);
  return 0;
}
