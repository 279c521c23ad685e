#include "worker/graphs/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/random.h"
#include "worker/graphs/operator_parts.h"

namespace harmony::worker {
namespace {

constexpr int64_t kWords = 4;                 // of a Philox block: one for each element
constexpr int64_t kGrain = int64_t{1} << 14;  // elements that are worth a thread
constexpr int64_t kMostLayers = int64_t{1} << 32, kMostNumbers = int64_t{1} << 32;

// Philox4x32 of four blocks at a time, a word to each 64-bit lane: one at a time takes four times
// as long, a fortieth of BERT's step. Elements from `begin` on, as many as make whole rounds; the
// end of what it drew.
__attribute__((target("avx2"))) int64_t DrawWide(uint64_t key, uint64_t stream, uint64_t threshold,
                                                 int64_t begin, int64_t end, bool* mask) {
  using Lanes = uint64_t __attribute__((vector_size(32)));
  constexpr int64_t kAtOnce = 4 * kWords;
  constexpr uint64_t kLow = 0xFFFFFFFF;
  const __m256i m0 = _mm256_set1_epi64x(kPhilox.multiplier0),
                m1 = _mm256_set1_epi64x(kPhilox.multiplier1);
  int64_t at = begin;
  for (; at + kAtOnce <= end; at += kAtOnce) {
    const Lanes counter = Lanes{0, 1, 2, 3} + static_cast<uint64_t>(at / kWords);
    Lanes c0 = counter & kLow, c1 = counter >> 32;
    Lanes c2 = Lanes{} + (stream & kLow), c3 = Lanes{} + (stream >> 32);
    uint64_t k0 = key & kLow, k1 = key >> 32;
    for (int round = 0; round < kPhilox.rounds; ++round) {
      const auto p0 = reinterpret_cast<Lanes>(_mm256_mul_epu32(m0, reinterpret_cast<__m256i>(c0)));
      const auto p1 = reinterpret_cast<Lanes>(_mm256_mul_epu32(m1, reinterpret_cast<__m256i>(c2)));
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c1 = p1 & kLow;
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c3 = p0 & kLow;
      k0 = (k0 + kPhilox.weyl0) & kLow;
      k1 = (k1 + kPhilox.weyl1) & kLow;
    }
    // Bit 63 of the difference says that a word is below the threshold. A byte for each word, the
    // four of a block side by side.
    c0 = (c0 - threshold) >> 63;
    c1 = (c1 - threshold) >> 63 << 8;
    c2 = (c2 - threshold) >> 63 << 16;
    c3 = (c3 - threshold) >> 63 << 24;
    const Lanes kept = (c0 | c1 | c2 | c3) ^ 0x01010101;
    for (size_t block = 0; block < 4; ++block) {
      const auto bytes = static_cast<uint32_t>(kept[block]);
      std::memcpy(mask + at + static_cast<int64_t>(block) * kWords, &bytes, sizeof(bytes));
    }
  }
  return at;
}

// Elements [begin, end) of a sample; begin is a multiple of kWords.
void Draw(uint64_t key, uint64_t stream, uint64_t threshold, int64_t begin, int64_t end,
          bool* mask) {
  static const bool wide = __builtin_cpu_supports("avx2") > 0;
  if (wide) begin = DrawWide(key, stream, threshold, begin, end, mask);
  for (int64_t at = begin; at < end; at += kWords) {
    const auto words = Philox4x32(key, static_cast<uint64_t>(at / kWords), stream);
    const int64_t count = std::min(kWords, end - at);
    for (int64_t i = 0; i < count; ++i) mask[at + i] = words[static_cast<size_t>(i)] >= threshold;
  }
}

// Pieces end with a block; they are what threads share, so that they do not depend on threads.
void DrawOnCpu(const DropoutDraw& draw) {
  const auto* const key = reinterpret_cast<const uint64_t*>(draw.keys);
  const int64_t pieces = (draw.elements + kGrain - 1) / kGrain;
  at::parallel_for(0, draw.samples * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t sample = piece / pieces, from = piece % pieces * kGrain;
      Draw(key[sample], draw.stream, draw.threshold, from, std::min(from + kGrain, draw.elements),
           draw.mask + sample * draw.elements);
    }
  });
}

at::Tensor DropoutMask(const at::Tensor& keys, int64_t layer, int64_t number, at::IntArrayRef shape,
                       int64_t dimension, double p) {
  return MakeDropoutMask(keys, layer, number, shape, dimension, p, DrawOnCpu);
}

}  // namespace

at::Tensor MakeDropoutMask(const at::Tensor& keys, int64_t layer, int64_t number,
                           at::IntArrayRef shape, int64_t dimension, double p,
                           void (*draw)(const DropoutDraw&)) {
  const int64_t samples = keys.numel();
  TORCH_CHECK(keys.scalar_type() == at::kLong && keys.is_contiguous() && samples > 0,
              "the keys are no int64 numbers");
  TORCH_CHECK(p >= 0 && p <= 1, "p is ", p);
  TORCH_CHECK(layer >= 0 && layer < kMostLayers && number >= 0 && number < kMostNumbers,
              "the layer is ", layer, ", the number ", number);
  TORCH_CHECK(dimension >= 0 && dimension < static_cast<int64_t>(shape.size()) &&
                  shape[static_cast<size_t>(dimension)] % samples == 0,
              "dimension ", dimension, " of ", shape, " is no multiple of ", samples, " samples");
  // Made with the rows first, so that each sample's elements lie together.
  std::vector<int64_t> rows_first(shape.begin(), shape.end());
  std::rotate(rows_first.begin(), rows_first.begin() + dimension,
              rows_first.begin() + dimension + 1);
  at::Tensor mask = at::empty(rows_first, keys.options().dtype(at::kBool));
  draw({.keys = keys.const_data_ptr<int64_t>(),
        .samples = samples,
        .elements = mask.numel() / samples,
        .stream = (static_cast<uint64_t>(layer) << 32) | static_cast<uint64_t>(number),
        .threshold = static_cast<uint64_t>(std::nearbyint(p * 0x1.0p32)),
        .mask = mask.mutable_data_ptr<bool>()});
  return dimension == 0 ? mask : mask.movedim(0, dimension).contiguous();
}

void DefineDropoutMask(torch::Library& library) {
  library.def(
      "dropout_mask(Tensor keys, int layer, int number, int[] shape, int dimension, float p) -> "
      "Tensor");
  library.impl("dropout_mask", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(DropoutMask)));
}

}  // namespace harmony::worker
