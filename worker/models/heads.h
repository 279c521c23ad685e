#pragma once

// The two ways in which layers look at what attention makes: rows [b * T, H * D], and heads [b, H,
// T, D] over the same memory.

#include <ATen/core/Tensor.h>

namespace harmony::worker {

// For the shape of the queries `q`.
inline at::Tensor RowsAsHeads(const at::Tensor& rows, const at::Tensor& q) {
  return rows.view({q.size(0), q.size(2), q.size(1), q.size(3)}).transpose(1, 2);
}

// A copy where they lie otherwise in memory.
inline at::Tensor HeadsAsRows(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape(
      {heads.size(0) * heads.size(2), heads.size(1) * heads.size(3)});
}

}  // namespace harmony::worker
