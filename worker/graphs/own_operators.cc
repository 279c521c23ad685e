#include "worker/graphs/own_operators.h"

#include <torch/library.h>

#include "worker/graphs/attention.h"
#include "worker/graphs/dropout_mask.h"
#include "worker/graphs/gated.h"
#include "worker/graphs/linear_cross_entropy.h"
#include "worker/graphs/norms.h"
#include "worker/graphs/product.h"
#include "worker/graphs/rotary.h"

namespace harmony::worker {

void RegisterOwnOperators() {
  static const auto* const library = [] {
    auto* made =
        new torch::Library(torch::Library::DEF, "harmony", std::nullopt, __FILE__, __LINE__);
    DefineAttention(*made);
    DefineDropoutMask(*made);
    DefineGated(*made);
    DefineLinearCrossEntropy(*made);
    DefineNorms(*made);
    DefineProduct(*made);
    DefineRotary(*made);
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace harmony::worker
