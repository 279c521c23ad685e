#pragma once

#include <functional>

namespace harmony::paper {

// Runs body(0..count-1) on `threads` threads, the caller's among them; returns when all are done.
void ParallelFor(int threads, int count, const std::function<void(int)>& body);

}  // namespace harmony::paper
