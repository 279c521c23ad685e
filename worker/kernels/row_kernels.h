#pragma once

// Loops over rows that LibTorch has no operation for, or only several, of which each reads and
// writes all numbers anew. What they compute is written once (row_bodies.h), for the CPU
// (cpu_row_kernels.h) and for GPUs (worker/cuda). Knows no LibTorch.
//
// Matrices are row-major and contiguous, addresses are of the device whose kernels these are.
// Arithmetic is in fp32, and what is written is rounded once, where nothing else is said. Sums are
// formed in an order that follows from the sizes alone. Work may be queued, as that of the
// ComputeDevice is; it may be given arguments that are gone when a function has returned. The
// compute lane's thread calls all.

#include <algorithm>
#include <cstdint>

namespace harmony::worker {

enum class Number { kF32, kBf16 };

// Sums over rows are formed in parts of consecutive rows, and these added up. Their scratch is the
// caller's: `parts` times `width` numbers of fp32 for each sum.
struct RowParts {
  static constexpr int64_t kMost = 2048, kMostNumbers = int64_t{1} << 20;
  RowParts(int64_t rows, int64_t width)
      : rows_each((rows + Most(width) - 1) / Most(width)),
        parts(rows_each == 0 ? 0 : (rows + rows_each - 1) / rows_each) {}

  int64_t rows_each;
  int64_t parts;

 private:
  static int64_t Most(int64_t width) {
    return std::clamp<int64_t>(kMostNumbers / std::max<int64_t>(width, 1), 1, kMost);
  }
};

// y = (x - mean) * rstd * weight + bias of each row; what is not centred (RMSNorm) has mean 0.
struct NormRows {
  int64_t rows = 0, width = 0;
  bool centred = false;
  float epsilon = 0;
  Number type = Number::kF32;        // of x and y
  Number parameters = Number::kF32;  // of weight and bias
  const void* x = nullptr;
  const void* weight = nullptr;  // null: ones
  const void* bias = nullptr;    // null: zeros
  float* mean = nullptr;         // [rows], where centred
  float* rstd = nullptr;         // [rows]
};

struct NormGradients {
  const void* of_y = nullptr;
  void* of_x = nullptr;         // may be of_y; null: not wanted
  const void* other = nullptr;  // of x, from elsewhere, which is added to it; null: none
  float* scratch = nullptr;     // of a sum, where there is a next one; of two, with of_bias
  float* of_weight = nullptr;   // added to; null: not wanted
  float* of_bias = nullptr;     // the same
};

// Rotary embedding in place, in Hugging Face's half-rotation layout: of [samples * tokens, heads *
// head_dim] the pairs (i, i + head_dim / 2) of each head are turned by token * frequencies[i].
struct Rotation {
  static constexpr int64_t kMostFrequencies = 512;
  Number type = Number::kF32;
  void* x = nullptr;
  int64_t samples = 0, tokens = 0, heads = 0, head_dim = 0;
  const float* frequencies = nullptr;  // [head_dim / 2], in the host's memory
  bool inverse = false;                // turns back: the backward
};

// The same of any rows, by tables: of each row of x
//   out[i] = x[i] cosines[i] - x[i + half] sines[i]
//   out[i + half] = x[i + half] cosines[i + half] + x[i] sines[i + half]
// where the backward takes what flows into x[i] from both. In 16 bits products are rounded before
// they are added. Rows have three indices; those of out are behind each other.
struct TableRotation {
  struct Rows {
    const void* first = nullptr;
    int64_t strides[3] = {};  // between rows, in numbers; a row's own numbers are contiguous
  };
  Number type = Number::kF32;
  int64_t sizes[3] = {1, 1, 1}, width = 0;
  Rows x, cosines, sines;
  bool backward = false;
};

enum class Gate { kSilu, kRelu, kGelu, kGeluTanh };

// out = Gate(gate) * up, both factors and the product rounded. The rows of both factors may lie at
// a distance from each other, as those of the halves of one tensor do.
struct GatedRows {
  Number type = Number::kF32;
  Gate by = Gate::kSilu;
  int64_t rows = 1, width = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  int64_t gate_stride = 0, up_stride = 0;  // from row to row
};

// The gradient of `scale` times the cross entropy takes the place of the logits; losses[row] is the
// cross entropy. A negative label counts nothing: loss and gradient are zero. Logits that are not
// finite give such a loss.
struct CrossEntropyRows {
  Number type = Number::kF32;
  int64_t rows = 0, classes = 0;
  void* logits = nullptr;
  const int32_t* labels = nullptr;
  float scale = 1;
  double* losses = nullptr;
};

// to[ids[i]] += from[order[i]], in the order of i, but for ids that are `skip`.
struct SortedRows {
  Number type = Number::kF32;
  int64_t rows = 0, width = 0;
  const int32_t* ids = nullptr;    // [rows], ascending
  const int64_t* order = nullptr;  // [rows]
  int64_t skip = -1;
  const void* from = nullptr;
  float* to = nullptr;
};

class RowKernels {
 public:
  virtual ~RowKernels() = default;

  // Sets y, and what the backward needs of each row. y may be x.
  virtual void Norm(const NormRows& norm, void* y) const = 0;
  virtual void NormBackward(const NormRows& norm, const NormGradients& gradients) const = 0;

  virtual void Rotate(const Rotation& rotation) const = 0;
  virtual void RotateByTables(const TableRotation& rotation, void* out) const = 0;

  // `out` may be one of the factors, where all is one row.
  virtual void Gated(const GatedRows& rows, void* out) const = 0;
  // From the gradient of the product those of both factors; each step rounds. `of_gate` may be the
  // product's.
  virtual void GatedBackward(const GatedRows& rows, const void* of_product, void* of_gate,
                             void* of_up) const = 0;

  virtual void CrossEntropy(const CrossEntropyRows& rows) const = 0;

  // sums [width] += the sum over the rows of `from`. `scratch`: of one sum.
  virtual void AddSumOfRows(Number type, const void* from, int64_t rows, int64_t width,
                            float* scratch, float* sums) const = 0;
  virtual void AddSortedRows(const SortedRows& rows) const = 0;
  // sums [count] += from[b] for b below `times`, in their order; `from` [times, count].
  virtual void AddInOrder(Number type, const void* from, int64_t times, int64_t count,
                          float* sums) const = 0;
};

}  // namespace harmony::worker
