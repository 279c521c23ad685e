#pragma once

// The RowKernels of a device, from what starts bodies there. A Launcher has
//
//   Teams<kTeam>(count, scratch, body)   body(team, i) for each i below count, by teams of so many
//                                        lanes, kLanes or kWarp, with so many numbers of scratch
//   Each(count, body)                    body(i) for each i below count
//
// one after the other where there are several.

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>

#include "worker/kernels/rotary_bodies.h"
#include "worker/kernels/row_bodies.h"

namespace harmony::worker::rows {

// Numbers of scratch that kLanes lanes have, of one team or of several; with what a Reduce needs,
// 48 KiB at most.
constexpr int64_t kMostScratch = 10240;
// Of so many packs and fewer a row is shared out by a warp.
constexpr int64_t kNarrow = 128;

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
                Teams(norm.rows, 0, norm.width / P, NormBody<T, W, P>{norm, static_cast<T*>(y)});
              });
  }

  void NormBackward(const NormRows& norm, const NormGradients& gradients) const override {
    const RowParts parts(norm.rows, norm.width);
    const int64_t numbers = norm.width * (gradients.of_bias == nullptr ? 1 : 2);
    WithTypes(
        norm,
        {norm.x, gradients.of_y, gradients.of_x, gradients.other, norm.weight, gradients.scratch},
        [&]<typename T, typename W, int P>(T*, W*, PackOf<P>) {
          const bool in_scratch = numbers <= kMostScratch;
          Teams(parts.parts, in_scratch ? numbers : 0, norm.width / P,
                NormBackwardBody<T, W, P>{norm, gradients, parts.rows_each, in_scratch});
        });
    Fold(gradients.scratch, 0, parts.parts, numbers, norm.width, gradients.of_weight);
    Fold(gradients.scratch, norm.width, parts.parts, numbers, norm.width, gradients.of_bias);
  }

  void Rotate(const Rotation& rotation) const override {
    const int64_t half = rotation.head_dim / 2;
    WithType(rotation.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(half, {rotation.x}, [&]<int P>(PackOf<P>) {
        RotateBody<T, P> body{rotation, {}};
        memcpy(body.frequencies, rotation.frequencies, sizeof(float) * static_cast<size_t>(half));
        Teams(rotation.samples * rotation.tokens, 2 * half, rotation.heads * half / P, body);
      });
    });
  }

  void RotateByTables(const TableRotation& rotation, void* out) const override {
    const int64_t half = rotation.width / 2;
    const int64_t rows = rotation.sizes[0] * rotation.sizes[1] * rotation.sizes[2];
    WithType(rotation.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(
          CommonOf(rotation), {rotation.x.first, rotation.cosines.first, rotation.sines.first, out},
          [&]<int P>(PackOf<P>) {
            launcher_.Each(rows * (half / P),
                           TableRotationBody<T, P>{rotation, static_cast<T*>(out)});
          });
    });
  }

  void Gated(const GatedRows& rows, void* out) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(CommonOf(rows), {rows.gate, rows.up, out}, [&]<int P>(PackOf<P>) {
        launcher_.Each(rows.rows * (rows.width / P), GatedBody<T, P>{rows, static_cast<T*>(out)});
      });
    });
  }

  void GatedBackward(const GatedRows& rows, const void* of_product, void* of_gate,
                     void* of_up) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(
          CommonOf(rows), {rows.gate, rows.up, of_product, of_gate, of_up}, [&]<int P>(PackOf<P>) {
            launcher_.Each(
                rows.rows * (rows.width / P),
                GatedBackwardBody<T, P>{rows, static_cast<const T*>(of_product),
                                        static_cast<T*>(of_gate), static_cast<T*>(of_up)});
          });
    });
  }

  void CrossEntropy(const CrossEntropyRows& rows) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(rows.classes, {rows.logits}, [&]<int P>(PackOf<P>) {
        Teams(rows.rows, 0, rows.classes / P, CrossEntropyBody<T, P>{rows});
      });
    });
  }

  void AddSumOfRows(Number type, const void* from, int64_t rows, int64_t width, float* scratch,
                    float* sums) const override {
    const RowParts parts(rows, width);
    WithType(type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(width, {from, scratch}, [&]<int P>(PackOf<P>) {
        Teams(
            parts.parts, 0, width / P,
            SumRowsBody<T, P>{static_cast<const T*>(from), rows, width, parts.rows_each, scratch});
      });
    });
    Fold(scratch, 0, parts.parts, width, width, sums);
  }

  void AddSortedRows(const SortedRows& rows) const override {
    WithType(rows.type, [&]<typename T>(T*) {
      WithPacks<kSeveralOf<T>>(rows.width, {rows.from, rows.to}, [&]<int P>(PackOf<P>) {
        Teams(rows.rows, 0, rows.width / P, SortedRowsBody<T, P>{rows});
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
  // What all rows, and their halves, begin at a multiple of.
  static int64_t CommonOf(const GatedRows& rows) {
    return std::gcd(rows.width, std::gcd(rows.gate_stride, rows.up_stride));
  }
  static int64_t CommonOf(const TableRotation& rotation) {
    int64_t common = rotation.width / 2;
    for (const TableRotation::Rows* rows : {&rotation.x, &rotation.cosines, &rotation.sines}) {
      for (const int64_t stride : rows->strides) common = std::gcd(common, stride);
    }
    return common;
  }

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

  // `packs`: of a row that a team shares out.
  template <typename Body>
  void Teams(int64_t count, int64_t scratch, int64_t packs, const Body& body) const {
    if (packs <= kNarrow && scratch <= kMostScratch / (kLanes / kWarp)) {
      launcher_.template Teams<kWarp>(count, scratch, body);
    } else {
      launcher_.template Teams<kLanes>(count, scratch, body);
    }
  }

  void Fold(const float* scratch, int64_t begin, int64_t count, int64_t stride, int64_t width,
            float* to) const {
    if (to != nullptr) Teams(width, 0, count, FoldBody{scratch + begin, count, stride, to});
  }

  Launcher launcher_;
};

}  // namespace harmony::worker::rows
