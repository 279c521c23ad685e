#pragma once

namespace harmony::worker::cuda {

// The operators of exported models that are Harmony's own (worker/graphs/own_operators.h), on
// CUDA. Once for each process.
void RegisterOperators();

}  // namespace harmony::worker::cuda
