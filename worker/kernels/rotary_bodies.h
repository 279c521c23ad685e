#pragma once

// Rotary embedding, as row_bodies.h has what else there is.

#include <cmath>
#include <cstdint>

#include "worker/kernels/row_kernels.h"
#include "worker/kernels/row_numbers.h"

namespace harmony::worker::rows {

// A team for each row of all heads.
template <typename T, int P>
struct RotateBody {
  Rotation rotation;
  float frequencies[Rotation::kMostFrequencies];

  template <typename Team>
  HARMONY_ON_ALL void operator()(Team& team, int64_t row) const {
    const int64_t half = rotation.head_dim / 2, packs = half / P;
    const auto position = static_cast<float>(row % rotation.tokens);
    float *const cosines = team.scratch, *const sines = team.scratch + half;
    team.ForEach(half, [&](int64_t i) {
      const float angle = position * frequencies[i];
      cosines[i] = cosf(angle);
      sines[i] = rotation.inverse ? -sinf(angle) : sinf(angle);
    });
    team.Sync();
    T* const x = static_cast<T*>(rotation.x) + row * rotation.heads * rotation.head_dim;
    team.ForEach(rotation.heads * packs, [&](int64_t i) {
      const int64_t head = Quotient(i, packs);
      const int64_t begin = (i - head * packs) * P;
      T* const first = x + head * rotation.head_dim + begin;
      float a[P], b[P];
      Load<P>(first, a);
      Load<P>(first + half, b);
      for (int j = 0; j < P; ++j) {
        const float cosine = cosines[begin + j], sine = sines[begin + j];
        const float turned = a[j] * cosine - b[j] * sine;
        b[j] = b[j] * cosine + a[j] * sine;
        a[j] = turned;
      }
      Store<P>(a, first);
      Store<P>(b, first + half);
    });
  }
};

// For each pack of the first halves, and that of the second.
template <typename T, int P>
struct TableRotationBody {
  TableRotation rotation;
  T* out;

  HARMONY_ON_ALL void operator()(int64_t i) const {
    const int64_t half = rotation.width / 2, row = Quotient(i, half / P);
    const int64_t begin = (i - row * (half / P)) * P;
    int64_t x_at = begin, cosine_at = begin, sine_at = begin, left = row;
    for (int d = 2; d >= 0; --d) {
      const int64_t next = Quotient(left, rotation.sizes[d]),
                    index = left - next * rotation.sizes[d];
      x_at += index * rotation.x.strides[d];
      cosine_at += index * rotation.cosines.strides[d];
      sine_at += index * rotation.sines.strides[d];
      left = next;
    }
    const T* const x = static_cast<const T*>(rotation.x.first) + x_at;
    const T* const cosines = static_cast<const T*>(rotation.cosines.first) + cosine_at;
    const T* const sines = static_cast<const T*>(rotation.sines.first) + sine_at;
    float a[P], b[P], cosine[P], other_cosine[P], sine[P], other_sine[P];
    Load<P>(x, a);
    Load<P>(x + half, b);
    Load<P>(cosines, cosine);
    Load<P>(cosines + half, other_cosine);
    Load<P>(sines, sine);
    Load<P>(sines + half, other_sine);
    for (int j = 0; j < P; ++j) {
      // What comes of the first half goes to the second, and the other way round.
      const float of_a = Rounded<T>(a[j] * (rotation.backward ? sine[j] : other_sine[j]));
      const float of_b = Rounded<T>(b[j] * (rotation.backward ? other_sine[j] : sine[j]));
      a[j] = Rounded<T>(a[j] * cosine[j]) + (rotation.backward ? of_b : -of_b);
      b[j] = Rounded<T>(b[j] * other_cosine[j]) + (rotation.backward ? -of_a : of_a);
    }
    Store<P>(a, out + row * rotation.width + begin);
    Store<P>(b, out + row * rotation.width + begin + half);
  }
};

}  // namespace harmony::worker::rows
