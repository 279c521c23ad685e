#pragma once

// The loops that ATen has no single operation for, on plain pointers: every matrix is row-major and
// contiguous, of T, which is float or c10::BFloat16. They compute in fp32 and round what they write
// once; sums and gradients of parameters are fp32. They run on ATen's intra-op threads.
//
// Each element is computed by one thread in a fixed order, so results depend neither on the number
// of threads nor on how rows are split among them. The bits may differ between CPU capability
// levels (AVX-512, AVX2, plain), like those of ATen itself.

#include <cstdint>

namespace harmony::worker::kernels {

// out[i] = table[ids[i]] for `rows` rows of `width`. Returns the first row whose id is outside
// [0, table_rows), or -1 when all are fine (then and only then `out` is complete).
template <typename T>
int64_t GatherRows(const T* table, int64_t table_rows, const int32_t* ids, int64_t rows,
                   int64_t width, T* out);

// gradient[ids[i]] += dy[i], in the order of i, but for ids that are `skip`. REQUIRES: ids as
// GatherRows accepts them.
template <typename T>
void ScatterAddRows(float* gradient, const int32_t* ids, const T* dy, int64_t rows, int64_t width,
                    int64_t skip);

// out[b, t] += positions[t] for [samples, tokens, width].
template <typename T>
void AddPositions(T* out, const T* positions, int64_t samples, int64_t tokens, int64_t width);

// gradient[t] += dy[b, t], in the order of b.
template <typename T>
void SumPositions(float* gradient, const T* dy, int64_t samples, int64_t tokens, int64_t width);

// Root-mean-square norm: rstd[i] = 1 / sqrt(mean(x[i]^2) + epsilon), y[i] = weight * (x[i] *
// rstd[i]).
template <typename T>
void RmsNorm(const T* x, const T* weight, int64_t rows, int64_t width, float epsilon, T* y,
             float* rstd);

// Its backward: dx (which may be dy), and weight_gradient += sum over rows, in their order.
template <typename T>
void RmsNormBackward(const T* dy, const T* x, const T* weight, const float* rstd, int64_t rows,
                     int64_t width, T* dx, float* weight_gradient);

// Rotary embedding in place, in Hugging Face's half-rotation layout. x: [samples * tokens, heads,
// head_dim]; cosines, sines: [tokens, head_dim / 2]. `inverse` rotates back (the backward).
template <typename T>
void Rotate(T* x, const float* cosines, const float* sines, int64_t samples, int64_t tokens,
            int64_t heads, int64_t head_dim, bool inverse);

// logits [rows, vocabulary] -> gradient of the loss with respect to them, in place: (softmax -
// onehot(label)) * scale. row_loss[i] is the cross entropy of row i; a negative label counts
// nothing (loss 0, gradient 0). Non-finite logits give a non-finite loss.
template <typename T>
void CrossEntropy(T* logits, const int32_t* labels, int64_t rows, int64_t vocabulary, float scale,
                  double* row_loss);

}  // namespace harmony::worker::kernels
