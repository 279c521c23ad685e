#include "worker/graphs/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/random.h"

namespace harmony::worker {
namespace {

constexpr int64_t kWords = 4;                 // of a Philox block: one for each element
constexpr int64_t kGrain = int64_t{1} << 14;  // elements that are worth a thread
constexpr int64_t kMostLayers = int64_t{1} << 32, kMostNumbers = int64_t{1} << 32;

// Elements [begin, end) of a sample; begin is a multiple of kWords.
void Draw(uint64_t key, uint64_t stream, uint64_t threshold, int64_t begin, int64_t end,
          bool* mask) {
  for (int64_t at = begin; at < end; at += kWords) {
    const auto words = Philox4x32(key, static_cast<uint64_t>(at / kWords), stream);
    const int64_t count = std::min(kWords, end - at);
    for (int64_t i = 0; i < count; ++i) mask[at + i] = words[static_cast<size_t>(i)] >= threshold;
  }
}

// `dimension` of the mask counts rows: as many for each sample.
at::Tensor DropoutMask(const at::Tensor& keys, int64_t layer, int64_t number, at::IntArrayRef shape,
                       int64_t dimension, double p) {
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
  const int64_t elements = mask.numel() / samples;
  const auto stream = (static_cast<uint64_t>(layer) << 32) | static_cast<uint64_t>(number);
  const auto threshold = static_cast<uint64_t>(std::nearbyint(p * 0x1.0p32));
  const auto* const key = reinterpret_cast<const uint64_t*>(keys.const_data_ptr<int64_t>());
  bool* const out = mask.mutable_data_ptr<bool>();
  // Pieces end with a block; they are what threads share, so that they do not depend on threads.
  const int64_t pieces = (elements + kGrain - 1) / kGrain;
  at::parallel_for(0, samples * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t sample = piece / pieces, from = piece % pieces * kGrain;
      Draw(key[sample], stream, threshold, from, std::min(from + kGrain, elements),
           out + sample * elements);
    }
  });
  return dimension == 0 ? mask : mask.movedim(0, dimension).contiguous();
}

}  // namespace

void RegisterDropoutMask() {
  static const auto* const library = [] {
    auto* made =
        new torch::Library(torch::Library::DEF, "harmony", std::nullopt, __FILE__, __LINE__);
    made->def(
        "dropout_mask(Tensor keys, int layer, int number, int[] shape, int dimension, float p) -> "
        "Tensor");
    made->impl("dropout_mask", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(DropoutMask)));
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace harmony::worker
