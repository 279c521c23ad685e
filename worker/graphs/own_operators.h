#pragma once

// The operators of graphs that are not LibTorch's (common/graphs/own_operators.h), for LibTorch.

namespace harmony::worker {

// Makes them known to LibTorch's dispatcher, once. Any thread.
void RegisterOwnOperators();

}  // namespace harmony::worker
