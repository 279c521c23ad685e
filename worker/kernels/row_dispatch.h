#pragma once

// The RowKernels of a device, from what starts bodies there. A Launcher has
//
//   Teams(count, scratch, body)   body(team, i) for each i below count, by teams with so many
//                                 numbers of scratch, at most kMostScratch
//   Each(count, body)             body(i) for each i below count
//
// one after the other where there are several.

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "worker/kernels/row_bodies.h"

namespace harmony::worker::rows {

constexpr int64_t kMostScratch = 10240;  // with what a Reduce needs, 48 KiB at most

// Calls f with a null pointer of the numbers' type.
template <typename F>
void WithType(Number number, const F& f) {
  if (number == Number::kF32) return f(static_cast<float*>(nullptr));
  f(static_cast<Bf16*>(nullptr));
}

template <int P>
struct PackOf {
  static constexpr int kSize = P;
};

// Calls f with how many numbers to read at once: 16 bytes of the narrower type of two, where rows
// are a multiple of it and all begin at one.
template <int kSeveral, typename F>
void WithPacks(int64_t width, std::initializer_list<const void*> places, const F& f) {
  bool whole = width % kSeveral == 0;
  for (const void* place : places) whole &= reinterpret_cast<uintptr_t>(place) % 16 == 0;
  if (whole) return f(PackOf<kSeveral>());
  f(PackOf<1>());
}
template <typename T>
constexpr int kSeveralOf = 16 / sizeof(T);

template <typename Launcher>
class RowKernelsBy : public RowKernels {
 public:
  explicit RowKernelsBy(Launcher launcher) : launcher_(launcher) {}

  void Norm(const NormRows& norm, void* y) const override {
    WithTypes(norm, {norm.x, y, norm.weight, norm.bias},
              [&]<typename T, typename W, int P>(T*, W*, PackOf<P>) {
                launcher_.Teams(norm.rows, 0, NormBody<T, W, P>{norm, static_cast<T*>(y)});
              });
  }

  void NormBackward(const NormRows& norm, const NormGradients& gradients) const override {
    const RowParts parts(norm.rows, norm.width);
    const int64_t numbers = norm.width * (gradients.of_bias == nullptr ? 1 : 2);
    WithTypes(norm, {norm.x, gradients.of_y, gradients.of_x, norm.weight, gradients.scratch},
              [&]<typename T, typename W, int P>(T*, W*, PackOf<P>) {
                const bool in_scratch = numbers <= kMostScratch;
                launcher_.Teams(
                    parts.parts, in_scratch ? numbers : 0,
                    NormBackwardBody<T, W, P>{norm, gradients, parts.rows_each, in_scratch});
              });
    Fold(gradients.scratch, parts.parts, numbers, norm.width, gradients.of_weight);
    Fold(gradients.scratch + norm.width, parts.parts, numbers, norm.width, gradients.of_bias);
  }

  void Rotate(const Rotation& rotation) const override {
    const int64_t half = rotation.head_dim / 2;
    WithType(rotation.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(half, {rotation.x}, [&]<int P>(PackOf<P>) {
        RotateBody<T, P> body{rotation, {}};
        memcpy(body.frequencies, rotation.frequencies, sizeof(float) * static_cast<size_t>(half));
        launcher_.Teams(rotation.samples * rotation.tokens, 2 * half, body);
      });
    });
  }

  void Gated(const GatedRows& rows, void* out) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(rows.count, {rows.gate, rows.up, out}, [&]<int P>(PackOf<P>) {
        launcher_.Each(rows.count / P, GatedBody<T, P>{rows, static_cast<T*>(out)});
      });
    });
  }

  void GatedBackward(const GatedRows& rows, void* of_gate, void* of_up) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(
          rows.count, {rows.gate, rows.up, of_gate, of_up}, [&]<int P>(PackOf<P>) {
            launcher_.Each(rows.count / P, GatedBackwardBody<T, P>{rows, static_cast<T*>(of_gate),
                                                                   static_cast<T*>(of_up)});
          });
    });
  }

  void CrossEntropy(const CrossEntropyRows& rows) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(rows.classes, {rows.logits}, [&]<int P>(PackOf<P>) {
        launcher_.Teams(rows.rows, 0, CrossEntropyBody<T, P>{rows});
      });
    });
  }

  void AddSumOfRows(Number type, const void* from, int64_t rows, int64_t width, float* scratch,
                    float* sums) const override {
    const RowParts parts(rows, width);
    WithType(type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(width, {from, scratch}, [&]<int P>(PackOf<P>) {
        launcher_.Teams(
            parts.parts, 0,
            SumRowsBody<T, P>{static_cast<const T*>(from), rows, width, parts.rows_each, scratch});
      });
    });
    Fold(scratch, parts.parts, width, width, sums);
  }

  void AddSortedRows(const SortedRows& rows) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(rows.width, {rows.from, rows.to}, [&]<int P>(PackOf<P>) {
        launcher_.Teams(rows.rows, 0, SortedRowsBody<T, P>{rows});
      });
    });
  }

  void AddInOrder(Number type, const void* from, int64_t times, int64_t count,
                  float* sums) const override {
    WithType(type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(count, {from, sums}, [&]<int P>(PackOf<P>) {
        launcher_.Each(count / P,
                       AddInOrderBody<T, P>{static_cast<const T*>(from), times, count, sums});
      });
    });
  }

 private:
  template <typename F>
  void WithTypes(const NormRows& norm, std::initializer_list<const void*> places,
                 const F& f) const {
    WithType(norm.type, [&]<typename T>(T* numbers) {
      WithType(norm.parameters, [&]<typename W>(W* parameters) {
        constexpr int kSeveral = kSeveralOf<T> < kSeveralOf<W> ? kSeveralOf<W> : kSeveralOf<T>;
        WithPacks<kSeveral>(norm.width, places,
                            [&]<int P>(PackOf<P> packs) { f(numbers, parameters, packs); });
      });
    });
  }

  void Fold(const float* parts, int64_t count, int64_t stride, int64_t width, float* to) const {
    if (to != nullptr) launcher_.Each(width, FoldBody{parts, count, stride, to});
  }

  Launcher launcher_;
};

}  // namespace harmony::worker::rows
