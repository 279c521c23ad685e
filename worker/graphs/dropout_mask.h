#pragma once

// An operator of graphs that is not LibTorch's: which elements a dropout keeps.
//
//   harmony::dropout_mask(Tensor keys, int layer, int number, int[] shape, int dimension,
//                         float p) -> Tensor
//
// Counter-based (common/base/random.h): an element depends on its sample's key, on the layer, on
// the dropout's number in the layer and on its own position in the sample only. So a forward that
// is done again drops the same, on whatever device and after whatever restart, and a microbatch's
// elements do not depend on which other samples it has.

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineDropoutMask(torch::Library& library);

}  // namespace harmony::worker
