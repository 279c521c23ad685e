#pragma once

// What the kernels of row_kernels.h compute: one code for the CPU and for GPUs, which nvcc compiles
// as well. A body is run for each of a number of teams, or for each number of a count. A team is so
// many lanes that share out a row (kLanes, or kWarp where rows are narrow); its functions are
// called by all of them:
//
//   ForEach(count, f)   f(i) for each i below count. Which lane has an i follows from i alone, so
//                       what a lane has written itself it may read again without Sync.
//   Reduce(count, zero, f, add)   the sum of f(i), a Two, in an order that follows from count.
//   Once(f)             f() by one lane.
//   Sync()              what lanes have written before, all may read after.
//   scratch             numbers of the team's own.

#include <cmath>
#include <cstdint>

#include "worker/kernels/row_kernels.h"
#include "worker/kernels/row_numbers.h"

namespace harmony::worker::rows {

constexpr int kLanes = 256, kWarp = 32;

// ---- Sums ----

struct Two {
  float first = 0, second = 0;
};
struct AddTwo {
  HARMONY_ON_ALL Two operator()(Two a, Two b) const {
    return {a.first + b.first, a.second + b.second};
  }
};

// ---- Norms ----

template <typename T, typename W, int P>
struct NormBody {
  NormRows norm;
  T* y;

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t row) const {
    const T* const x = static_cast<const T*>(norm.x) + row * norm.width;
    const W* const weight = static_cast<const W*>(norm.weight);
    const W* const bias = static_cast<const W*>(norm.bias);
    const float width = static_cast<float>(norm.width);
    const int64_t packs = norm.width / P;
    float mean = 0;
    if (norm.centred) {
      const auto sum_of = [&](int64_t i) {
        float part[P];
        Load<P>(x + i * P, part);
        Two sum;
        for (int j = 0; j < P; ++j) sum.first += part[j];
        return sum;
      };
      mean = team.Reduce(packs, Two(), sum_of, AddTwo()).first / width;
    }
    const auto squares_of = [&](int64_t i) {
      float part[P];
      Load<P>(x + i * P, part);
      Two sum;
      for (int j = 0; j < P; ++j) sum.first += (part[j] - mean) * (part[j] - mean);
      return sum;
    };
    const float variance = team.Reduce(packs, Two(), squares_of, AddTwo()).first / width;
    const float rstd = 1 / sqrtf(variance + norm.epsilon);
    team.ForEach(packs, [&](int64_t i) {
      float part[P], weights[P], biases[P];
      Load<P>(x + i * P, part);
      LoadOr<P>(1, weight, i * P, weights);
      LoadOr<P>(0, bias, i * P, biases);
      for (int j = 0; j < P; ++j) part[j] = (part[j] - mean) * rstd * weights[j] + biases[j];
      Store<P>(part, y + row * norm.width + i * P);
    });
    team.Once([&] {
      if (norm.centred) norm.mean[row] = mean;
      norm.rstd[row] = rstd;
    });
  }
};

// A team for each part of the rows. The sums, of the weight's gradient and then of the bias's where
// that is wanted, are formed in the team's scratch where that has room for them, else in the part's
// place.
template <typename T, typename W, int P>
struct NormBackwardBody {
  NormRows norm;
  NormGradients gradients;
  int64_t rows_each;
  bool in_scratch;

  HARMONY_ON_ALL bool biased() const { return gradients.of_bias != nullptr; }
  HARMONY_ON_ALL int64_t numbers() const { return norm.width * (biased() ? 2 : 1); }

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t part) const {
    const bool summed = gradients.of_weight != nullptr || biased();
    float* const place = summed ? gradients.scratch + part * numbers() : nullptr;
    float* const sum = summed && in_scratch ? team.scratch : place;
    const int64_t packs = norm.width / P, end_of_part = (part + 1) * rows_each;
    const float zeros[P] = {};
    if (summed) {
      team.ForEach(packs, [&](int64_t i) {
        Store<P>(zeros, sum + i * P);
        if (biased()) Store<P>(zeros, sum + norm.width + i * P);
      });
    }
    const int64_t end = norm.rows < end_of_part ? norm.rows : end_of_part;
    for (int64_t row = part * rows_each; row < end; ++row) Row(team, row, sum);
    if (sum == place) return;
    team.ForEach(packs, [&](int64_t i) {
      Copy(sum + i * P, place + i * P);
      if (biased()) Copy(sum + norm.width + i * P, place + norm.width + i * P);
    });
  }

  HARMONY_ON_ALL static void Copy(const float* from, float* to) {
    float numbers[P];
    Load<P>(from, numbers);
    Store<P>(numbers, to);
  }

  template <typename Team>
  HARMONY_ON_ALL void Row(Team& team, int64_t row, float* sum) const {
    const int64_t width = norm.width, packs = width / P;
    const T* const x = static_cast<const T*>(norm.x) + row * width;
    const T* const of_y = static_cast<const T*>(gradients.of_y) + row * width;
    const W* const weight = static_cast<const W*>(norm.weight);
    const float mean = norm.centred ? norm.mean[row] : 0, rstd = norm.rstd[row];
    // What flows along the normed row, and along its mean.
    Two along;
    if (gradients.of_x != nullptr) {
      along = team.Reduce(
          packs, Two(),
          [&](int64_t i) {
            float normed[P], gradient[P], weights[P];
            Load<P>(x + i * P, normed);
            Load<P>(of_y + i * P, gradient);
            LoadOr<P>(1, weight, i * P, weights);
            Two part;
            for (int j = 0; j < P; ++j) {
              part.first += gradient[j] * weights[j] * ((normed[j] - mean) * rstd);
              part.second += gradient[j] * weights[j];
            }
            return part;
          },
          AddTwo());
      along.first /= static_cast<float>(width);
      along.second = norm.centred ? along.second / static_cast<float>(width) : 0;
    }
    team.ForEach(packs, [&](int64_t i) {
      float normed[P], gradient[P], weights[P];
      Load<P>(x + i * P, normed);
      Load<P>(of_y + i * P, gradient);
      LoadOr<P>(1, weight, i * P, weights);
      for (int j = 0; j < P; ++j) normed[j] = (normed[j] - mean) * rstd;
      if (sum != nullptr) {
        float summed[P];
        Load<P>(sum + i * P, summed);
        for (int j = 0; j < P; ++j) summed[j] += gradient[j] * normed[j];
        Store<P>(summed, sum + i * P);
        if (biased()) {
          Load<P>(sum + width + i * P, summed);
          for (int j = 0; j < P; ++j) summed[j] += gradient[j];
          Store<P>(summed, sum + width + i * P);
        }
      }
      if (gradients.of_x == nullptr) return;
      for (int j = 0; j < P; ++j) {
        gradient[j] = (gradient[j] * weights[j] - along.second - normed[j] * along.first) * rstd;
      }
      if (gradients.other != nullptr) {
        float others[P];
        Load<P>(static_cast<const T*>(gradients.other) + row * width + i * P, others);
        for (int j = 0; j < P; ++j) gradient[j] += others[j];
      }
      Store<P>(gradient, static_cast<T*>(gradients.of_x) + row * width + i * P);
    });
  }
};

// ---- Sums over rows ----

// to[i] += the sum of the parts' numbers i. A team for each i.
struct FoldBody {
  const float* parts;
  int64_t count, stride;  // of parts
  float* to;

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t i) const {
    const auto number_of = [&](int64_t part) { return Two{parts[part * stride + i], 0}; };
    const float sum = team.Reduce(count, Two(), number_of, AddTwo()).first;
    team.Once([&] { to[i] += sum; });
  }
};

// A team for each part.
template <typename T, int P>
struct SumRowsBody {
  const T* from;
  int64_t rows, width, rows_each;
  float* scratch;

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t part) const {
    const int64_t begin = part * rows_each;
    const int64_t end = rows < begin + rows_each ? rows : begin + rows_each;
    team.ForEach(width / P, [&](int64_t i) {
      float sum[P] = {};
      for (int64_t row = begin; row < end; ++row) {
        float numbers[P];
        Load<P>(from + row * width + i * P, numbers);
        for (int j = 0; j < P; ++j) sum[j] += numbers[j];
      }
      Store<P>(sum, scratch + part * width + i * P);
    });
  }
};

// A team for each row; the first of those with one id adds them all.
template <typename T, int P>
struct SortedRowsBody {
  SortedRows rows;

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t first) const {
    const int32_t id = rows.ids[first];
    if ((first > 0 && rows.ids[first - 1] == id) || id == rows.skip) return;
    const T* const from = static_cast<const T*>(rows.from);
    team.ForEach(rows.width / P, [&](int64_t i) {
      float* const to = rows.to + id * rows.width + i * P;
      float sum[P];
      Load<P>(to, sum);
      for (int64_t row = first; row < rows.rows && rows.ids[row] == id; ++row) {
        float numbers[P];
        Load<P>(from + rows.order[row] * rows.width + i * P, numbers);
        for (int j = 0; j < P; ++j) sum[j] += numbers[j];
      }
      Store<P>(sum, to);
    });
  }
};

// For each pack of the sums.
template <typename T, int P>
struct AddInOrderBody {
  const T* from;
  int64_t times, count;
  float* sums;

  HARMONY_ON_ALL void operator()(int64_t i) const {
    float sum[P], numbers[P];
    Load<P>(sums + i * P, sum);
    for (int64_t time = 0; time < times; ++time) {
      Load<P>(from + time * count + i * P, numbers);
      for (int j = 0; j < P; ++j) sum[j] += numbers[j];
    }
    Store<P>(sum, sums + i * P);
  }
};

// ---- Gated products ----

// A function and its derivative.
struct Slope {
  float value, derivative;
};
HARMONY_ON_ALL Slope SlopeOf(Gate gate, float x) {
  constexpr float kRootOfHalf = 0.70710678118654752F;       // 1 / sqrt(2)
  constexpr float kRootOfTwoOverPi = 0.79788456080286536F;  // sqrt(2 / pi)
  constexpr float kOfNormal = 0.39894228040143268F;         // 1 / sqrt(2 pi)
  constexpr float kCubic = 0.044715F;
  switch (gate) {
    case Gate::kSilu: {
      const float share = 1 / (1 + expf(-x));
      return {x * share, share * (1 + x * (1 - share))};
    }
    case Gate::kRelu:
      return {x <= 0 ? 0 : x, x <= 0 ? 0.F : 1.F};  // what is no number stays so
    case Gate::kGelu: {
      const float share = 0.5F * (1 + erff(x * kRootOfHalf));
      return {x * share, share + x * kOfNormal * expf(-0.5F * x * x)};
    }
    case Gate::kGeluTanh: {
      const float tangent = tanhf(kRootOfTwoOverPi * (x + kCubic * x * x * x));
      const float inner = kRootOfTwoOverPi * (1 + 3 * kCubic * x * x);
      return {0.5F * x * (1 + tangent),
              0.5F * (1 + tangent) + 0.5F * x * (1 - tangent * tangent) * inner};
    }
  }
  return {0, 0};
}

// Of pack i.
template <typename T, int P>
HARMONY_ON_ALL void LoadFactors(const GatedRows& rows, int64_t i, float (&gate)[P],
                                float (&up)[P]) {
  const int64_t packs = rows.width / P, row = Quotient(i, packs), at = (i - row * packs) * P;
  Load<P>(static_cast<const T*>(rows.gate) + row * rows.gate_stride + at, gate);
  Load<P>(static_cast<const T*>(rows.up) + row * rows.up_stride + at, up);
}

// For each pack.
template <typename T, int P>
struct GatedBody {
  GatedRows rows;
  T* out;

  HARMONY_ON_ALL void operator()(int64_t i) const {
    float gate[P], up[P];
    LoadFactors<T, P>(rows, i, gate, up);
    for (int j = 0; j < P; ++j) up[j] *= Rounded<T>(SlopeOf(rows.by, gate[j]).value);
    Store<P>(up, out + i * P);
  }
};

template <typename T, int P>
struct GatedBackwardBody {
  GatedRows rows;
  const T* of_product;
  T* of_gate;
  T* of_up;

  HARMONY_ON_ALL void operator()(int64_t i) const {
    float gate[P], up[P], gradient[P];
    LoadFactors<T, P>(rows, i, gate, up);
    Load<P>(of_product + i * P, gradient);
    for (int j = 0; j < P; ++j) {
      const Slope slope = SlopeOf(rows.by, gate[j]);
      const float through = Rounded<T>(gradient[j] * up[j]);
      up[j] = gradient[j] * Rounded<T>(slope.value);
      gradient[j] = through * slope.derivative;
    }
    Store<P>(gradient, of_gate + i * P);
    Store<P>(up, of_up + i * P);
  }
};

// ---- The loss ----

// The largest number of a row, and the sum of exp(number - largest).
struct AddExponentials {
  HARMONY_ON_ALL Two operator()(Two a, Two b) const {
    const bool takes_other = a.first < b.first || b.first != b.first;  // also what is no number
    const float most = takes_other ? b.first : a.first;
    if (most == -INFINITY) return {most, a.second + b.second};
    return {most, a.second * expf(a.first - most) + b.second * expf(b.first - most)};
  }
};

template <typename T, int P>
struct CrossEntropyBody {
  CrossEntropyRows rows;

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t row) const {
    T* const logits = static_cast<T*>(rows.logits) + row * rows.classes;
    const int32_t label = rows.labels[row];
    const int64_t packs = rows.classes / P;
    if (label < 0) {
      const float zeros[P] = {};
      team.ForEach(packs, [&](int64_t i) { Store<P>(zeros, logits + i * P); });
      team.Once([&] { rows.losses[row] = 0; });
      return;
    }
    const Two sum = team.Reduce(
        packs, Two{-INFINITY, 0},
        [&](int64_t i) {
          float numbers[P];
          Load<P>(logits + i * P, numbers);
          Two part{numbers[0], 1};
          for (int j = 1; j < P; ++j) part = AddExponentials()(part, {numbers[j], 1});
          return part;
        },
        AddExponentials());
    team.Once([&] {
      rows.losses[row] = static_cast<double>(logf(sum.second)) + sum.first - Widen(logits[label]);
    });
    team.Sync();  // the logit has been read
    team.ForEach(packs, [&](int64_t i) {
      float numbers[P];
      Load<P>(logits + i * P, numbers);
      for (int j = 0; j < P; ++j) {
        const float right = i * P + j == label ? 1 : 0;
        numbers[j] = (expf(numbers[j] - sum.first) / sum.second - right) * rows.scale;
      }
      Store<P>(numbers, logits + i * P);
    });
  }
};

}  // namespace harmony::worker::rows
