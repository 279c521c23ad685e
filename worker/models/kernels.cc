#include "worker/models/kernels.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// Compiled for each level, chosen when the program is loaded.
#define HARMONY_CPU_LEVELS __attribute__((target_clones("avx512f", "avx2", "default")))

#include "worker/device/cpu_memory.h"

namespace harmony::worker::kernels {
namespace {

constexpr int kLanes = 16;                 // independent accumulators of a reduction
constexpr int64_t kGrainElements = 16384;  // elements below which a second thread does not pay

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

float SumLanes(const float* lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

// exp for x <= 0, within 2 ulp (the polynomial of Cephes); not-a-number stays what it is.
inline float ExpNonPositive(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

HARMONY_CPU_LEVELS float RowMax(const float* x, int64_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  float result = lanes[0];
  for (int j = 1; j < kLanes; ++j) result = std::max(result, lanes[j]);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// x = exp(x - maximum); returns the sum, carried in double from one stretch to the next.
HARMONY_CPU_LEVELS double ExpRow(float* x, int64_t n, float maximum) {
  constexpr int64_t kStretch = 1024;
  double total = 0;
  int64_t i = 0;
  while (i + kLanes <= n) {
    const int64_t end = std::min(n - (n - i) % kLanes, i + kStretch);
    float lanes[kLanes] = {};
    for (; i < end; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const float e = ExpNonPositive(x[i + j] - maximum);
        x[i + j] = e;
        lanes[j] += e;
      }
    }
    total += SumLanes(lanes);
  }
  for (; i < n; ++i) {
    x[i] = ExpNonPositive(x[i] - maximum);
    total += x[i];
  }
  return total;
}

HARMONY_CPU_LEVELS void ScaleRow(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

HARMONY_CPU_LEVELS void AddRow(float* sum, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

HARMONY_CPU_LEVELS float SumOfSquares(const float* x, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i] * x[i];
  return SumLanes(lanes);
}

HARMONY_CPU_LEVELS void NormRow(const float* x, const float* weight, int64_t n, float rstd,
                                float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * rstd);
}

HARMONY_CPU_LEVELS void NormBackwardRow(const float* dy, const float* x, const float* weight,
                                        int64_t n, float rstd, float* dx) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += dy[i + j] * weight[i + j] * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += dy[i] * weight[i] * x[i];
  const float projection = SumLanes(lanes) * rstd * rstd / static_cast<float>(n);
  for (i = 0; i < n; ++i) dx[i] = rstd * (dy[i] * weight[i] - x[i] * projection);
}

HARMONY_CPU_LEVELS void AccumulateNormWeight(const float* dy, const float* x, float rstd, int64_t n,
                                             float* gradient) {
  for (int64_t i = 0; i < n; ++i) gradient[i] += dy[i] * (x[i] * rstd);
}

HARMONY_CPU_LEVELS void RotateHead(float* x, const float* cosines, const float* sines, int64_t half,
                                   float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[i + half];
    const float sine = sign * sines[i];
    x[i] = low * cosines[i] - high * sine;
    x[i + half] = high * cosines[i] + low * sine;
  }
}

HARMONY_CPU_LEVELS void Widen(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{x[i]} << 16);
}

// Stretches of a matrix of T as fp32 ones: in place, or in a buffer.
template <typename T>
class Stretch;

template <>
class Stretch<float> {
 public:
  explicit Stretch(int64_t) {}
  const float* Read(const float* x, int64_t) { return x; }
  // To be written, or read and written; Done when it has been.
  float* Write(float* x) { return x; }
  float* Change(float* x, int64_t) { return x; }
  void Done(float*, int64_t) {}
};

template <>
class Stretch<c10::BFloat16> {
 public:
  // Of the workspace, as all memory that grows with the model.
  explicit Stretch(int64_t length)
      : buffer_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(length) * sizeof(float))) {}
  const float* Read(const c10::BFloat16* x, int64_t n) { return Change(x, n); }
  float* Write(c10::BFloat16*) { return data(); }
  float* Change(const c10::BFloat16* x, int64_t n) {
    Widen(reinterpret_cast<const uint16_t*>(x), n, data());
    return data();
  }
  void Done(c10::BFloat16* x, int64_t n) { Narrow(data(), n, reinterpret_cast<uint16_t*>(x)); }

 private:
  float* data() const { return static_cast<float*>(buffer_.get()); }
  const c10::DataPtr buffer_;
};

}  // namespace

template <typename T>
int64_t GatherRows(const T* table, int64_t table_rows, const int32_t* ids, int64_t rows,
                   int64_t width, T* out) {
  for (int64_t i = 0; i < rows; ++i) {
    if (ids[i] < 0 || ids[i] >= table_rows) return i;
  }
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + i * width, table + ids[i] * width, sizeof(T) * width);
    }
  });
  return -1;
}

template <typename T>
void ScatterAddRows(float* gradient, const int32_t* ids, const T* dy, int64_t rows, int64_t width,
                    int64_t skip) {
  // Columns are split, so that rows of one id are added in order whatever the number of threads.
  at::parallel_for(0, width, GrainRows(rows), [&](int64_t begin, int64_t end) {
    Stretch<T> row(end - begin);
    for (int64_t i = 0; i < rows; ++i) {
      if (ids[i] == skip) continue;
      AddRow(gradient + ids[i] * width + begin, row.Read(dy + i * width + begin, end - begin),
             end - begin);
    }
  });
}

template <typename T>
void AddPositions(T* out, const T* positions, int64_t samples, int64_t tokens, int64_t width) {
  at::parallel_for(0, samples * tokens, GrainRows(width), [&](int64_t begin, int64_t end) {
    Stretch<T> sum(width), position(width);
    for (int64_t i = begin; i < end; ++i) {
      AddRow(sum.Change(out + i * width, width),
             position.Read(positions + (i % tokens) * width, width), width);
      sum.Done(out + i * width, width);
    }
  });
}

template <typename T>
void SumPositions(float* gradient, const T* dy, int64_t samples, int64_t tokens, int64_t width) {
  at::parallel_for(0, tokens, GrainRows(width * samples), [&](int64_t begin, int64_t end) {
    Stretch<T> row(width);
    for (int64_t b = 0; b < samples; ++b) {
      for (int64_t t = begin; t < end; ++t) {
        AddRow(gradient + t * width, row.Read(dy + (b * tokens + t) * width, width), width);
      }
    }
  });
}

template <typename T>
void RmsNorm(const T* x, const T* weight, int64_t rows, int64_t width, float epsilon, T* y,
             float* rstd) {
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    Stretch<T> in(width), factors(width), out(width);
    const float* const factor = factors.Read(weight, width);
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = in.Read(x + i * width, width);
      const float mean = SumOfSquares(row, width) / static_cast<float>(width);
      rstd[i] = 1.0f / std::sqrt(mean + epsilon);
      NormRow(row, factor, width, rstd[i], out.Write(y + i * width));
      out.Done(y + i * width, width);
    }
  });
}

template <typename T>
void RmsNormBackward(const T* dy, const T* x, const T* weight, const float* rstd, int64_t rows,
                     int64_t width, T* dx, float* weight_gradient) {
  // The weight's gradient first: dx may overwrite dy. Columns are split, rows come in order.
  at::parallel_for(0, width, GrainRows(rows), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    Stretch<T> gradient(count), in(count);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * width + begin;
      AccumulateNormWeight(gradient.Read(dy + at, count), in.Read(x + at, count), rstd[i], count,
                           weight_gradient + begin);
    }
  });
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    Stretch<T> gradient(width), in(width), factors(width), out(width);
    const float* const factor = factors.Read(weight, width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * width;
      NormBackwardRow(gradient.Read(dy + at, width), in.Read(x + at, width), factor, width, rstd[i],
                      out.Write(dx + at));
      out.Done(dx + at, width);
    }
  });
}

template <typename T>
void Rotate(T* x, const float* cosines, const float* sines, int64_t samples, int64_t tokens,
            int64_t heads, int64_t head_dim, bool inverse) {
  const int64_t half = head_dim / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  const int64_t grain = GrainRows(heads * head_dim);
  at::parallel_for(0, samples * tokens, grain, [&](int64_t begin, int64_t end) {
    Stretch<T> head(head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i % tokens;
      for (int64_t h = 0; h < heads; ++h) {
        T* const at = x + (i * heads + h) * head_dim;
        RotateHead(head.Change(at, head_dim), cosines + t * half, sines + t * half, half, sign);
        head.Done(at, head_dim);
      }
    }
  });
}

template <typename T>
void CrossEntropy(T* logits, const int32_t* labels, int64_t rows, int64_t vocabulary, float scale,
                  double* row_loss) {
  at::parallel_for(0, rows, GrainRows(vocabulary), [&](int64_t begin, int64_t end) {
    Stretch<T> stretch(vocabulary);
    for (int64_t i = begin; i < end; ++i) {
      T* const at = logits + i * vocabulary;
      if (labels[i] < 0) {
        row_loss[i] = 0;
        std::memset(static_cast<void*>(at), 0, sizeof(T) * vocabulary);
        continue;
      }
      float* const row = stretch.Change(at, vocabulary);
      const float maximum = RowMax(row, vocabulary);
      const float picked = row[labels[i]] - maximum;
      const double sum = ExpRow(row, vocabulary, maximum);
      row_loss[i] = std::log(sum) - static_cast<double>(picked);
      ScaleRow(row, vocabulary, static_cast<float>(static_cast<double>(scale) / sum));
      row[labels[i]] -= scale;
      stretch.Done(at, vocabulary);
    }
  });
}

#define HARMONY_KERNELS_OF(T)                                                                     \
  template int64_t GatherRows(const T*, int64_t, const int32_t*, int64_t, int64_t, T*);           \
  template void ScatterAddRows(float*, const int32_t*, const T*, int64_t, int64_t, int64_t);      \
  template void AddPositions(T*, const T*, int64_t, int64_t, int64_t);                            \
  template void SumPositions(float*, const T*, int64_t, int64_t, int64_t);                        \
  template void RmsNorm(const T*, const T*, int64_t, int64_t, float, T*, float*);                 \
  template void RmsNormBackward(const T*, const T*, const T*, const float*, int64_t, int64_t, T*, \
                                float*);                                                          \
  template void Rotate(T*, const float*, const float*, int64_t, int64_t, int64_t, int64_t, bool); \
  template void CrossEntropy(T*, const int32_t*, int64_t, int64_t, float, double*);
HARMONY_KERNELS_OF(float)
HARMONY_KERNELS_OF(c10::BFloat16)
#undef HARMONY_KERNELS_OF

}  // namespace harmony::worker::kernels
