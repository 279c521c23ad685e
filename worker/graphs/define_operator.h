#pragma once

// How operators of Harmony's own are made known to LibTorch.

#include <torch/library.h>

namespace harmony::worker {

// With a function that computes it on every device that has none of its own (worker/cuda has some).
template <typename Function>
void DefineOperator(torch::Library& library, const char* schema, const char* name,
                    Function function) {
  library.def(schema);
  library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
}

}  // namespace harmony::worker
