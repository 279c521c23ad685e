#include "worker/models/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// Compiled for each level, chosen when the program is loaded.
#define HARMONY_CPU_LEVELS __attribute__((target_clones("avx512f", "avx2", "default")))

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

}  // namespace

int64_t GatherRows(const float* table, int64_t table_rows, const int32_t* ids, int64_t rows,
                   int64_t width, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    if (ids[i] < 0 || ids[i] >= table_rows) return i;
  }
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + i * width, table + ids[i] * width, sizeof(float) * width);
    }
  });
  return -1;
}

void ScatterAddRows(float* gradient, const int32_t* ids, const float* dy, int64_t rows,
                    int64_t width, int64_t skip) {
  // Columns are split, so that rows of one id are added in order whatever the number of threads.
  at::parallel_for(0, width, GrainRows(rows), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rows; ++i) {
      if (ids[i] == skip) continue;
      AddRow(gradient + ids[i] * width + begin, dy + i * width + begin, end - begin);
    }
  });
}

void AddPositions(float* out, const float* positions, int64_t samples, int64_t tokens,
                  int64_t width) {
  at::parallel_for(0, samples * tokens, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AddRow(out + i * width, positions + (i % tokens) * width, width);
    }
  });
}

void SumPositions(float* gradient, const float* dy, int64_t samples, int64_t tokens,
                  int64_t width) {
  at::parallel_for(0, tokens, GrainRows(width * samples), [&](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < samples; ++b) {
      AddRow(gradient + begin * width, dy + (b * tokens + begin) * width, (end - begin) * width);
    }
  });
}

void RmsNorm(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon,
             float* y, float* rstd) {
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float mean = SumOfSquares(x + i * width, width) / static_cast<float>(width);
      rstd[i] = 1.0f / std::sqrt(mean + epsilon);
      NormRow(x + i * width, weight, width, rstd[i], y + i * width);
    }
  });
}

void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* rstd,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient) {
  // The weight's gradient first: dx may overwrite dy. Columns are split, rows come in order.
  at::parallel_for(0, width, GrainRows(rows), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * width + begin;
      AccumulateNormWeight(dy + at, x + at, rstd[i], end - begin, weight_gradient + begin);
    }
  });
  at::parallel_for(0, rows, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      NormBackwardRow(dy + i * width, x + i * width, weight, width, rstd[i], dx + i * width);
    }
  });
}

void Rotate(float* x, const float* cosines, const float* sines, int64_t samples, int64_t tokens,
            int64_t heads, int64_t head_dim, bool inverse) {
  const int64_t half = head_dim / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  const int64_t grain = GrainRows(heads * head_dim);
  at::parallel_for(0, samples * tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i % tokens;
      for (int64_t h = 0; h < heads; ++h) {
        RotateHead(x + (i * heads + h) * head_dim, cosines + t * half, sines + t * half, half,
                   sign);
      }
    }
  });
}

void CrossEntropy(float* logits, const int32_t* labels, int64_t rows, int64_t vocabulary,
                  float scale, double* row_loss) {
  at::parallel_for(0, rows, GrainRows(vocabulary), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = logits + i * vocabulary;
      if (labels[i] < 0) {
        row_loss[i] = 0;
        std::memset(row, 0, sizeof(float) * vocabulary);
        continue;
      }
      const float maximum = RowMax(row, vocabulary);
      const float picked = row[labels[i]] - maximum;
      const double sum = ExpRow(row, vocabulary, maximum);
      row_loss[i] = std::log(sum) - static_cast<double>(picked);
      ScaleRow(row, vocabulary, static_cast<float>(static_cast<double>(scale) / sum));
      row[labels[i]] -= scale;
    }
  });
}

}  // namespace harmony::worker::kernels
