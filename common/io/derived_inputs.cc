#include "common/io/derived_inputs.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace harmony::io {
namespace {

// Keeps these draws apart from those of initialisation and of the order, which share the seed.
constexpr uint64_t kSampleKeyStream = uint64_t{2} << 48;

int64_t CountedLabelsOf(const model::ModelSpec& model, const std::byte* labels, int64_t sample) {
  const model::CountedLabels& counted = *model.counted_labels;
  const model::SampleTensor& tensor = model.inputs[static_cast<size_t>(counted.input)].tensor;
  const std::byte* const of_sample = labels + (tensor.per_sample() * sample).count();
  int64_t count = 0;
  for (int64_t i = 0; i < model.labels_per_sample; ++i) {
    if (model::IntegerAt(of_sample, tensor.dtype, counted.first + i) != counted.ignored) ++count;
  }
  return count;
}

absl::Status FillLabelCounts(const model::ModelSpec& model, int64_t step, int64_t samples,
                             const std::byte* labels, int64_t* counts) {
  int64_t total = 0;
  for (int64_t s = 0; s < samples; ++s) {
    counts[2 * s] = CountedLabelsOf(model, labels, s);
    total += counts[2 * s];
  }
  if (total == 0) {
    const model::CountedLabels& counted = *model.counted_labels;
    return absl::InvalidArgumentError(
        absl::StrCat("the batch of step ", step + 1, ": all of its labels are ", counted.ignored,
                     ", which does not count, so there is no loss; mend '",
                     model.inputs[static_cast<size_t>(counted.input)].tensor.name,
                     "' in the data, or raise global_batch_size"));
  }
  for (int64_t s = 0; s < samples; ++s) counts[2 * s + 1] = total;
  return absl::OkStatus();
}

}  // namespace

uint64_t SampleKey(uint64_t seed, int64_t step, int64_t sample) {
  const auto words = Philox4x32(seed, static_cast<uint64_t>(sample),
                                kSampleKeyStream + static_cast<uint64_t>(step));
  return (uint64_t{words[0]} << 32) | words[1];
}

absl::Status FillDerivedInputs(const model::ModelSpec& model, uint64_t seed, int64_t step,
                               int64_t samples, absl::Span<std::byte* const> places) {
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    auto* const numbers = reinterpret_cast<int64_t*>(places[i]);
    switch (model.inputs[i].source) {
      case model::InputSource::kData:
        break;
      case model::InputSource::kLabelCounts: {
        if (!model.counted_labels.has_value()) {
          return absl::InternalError("the model does not say which labels count");
        }
        const auto labels = static_cast<size_t>(model.counted_labels->input);
        absl::Status filled = FillLabelCounts(model, step, samples, places[labels], numbers);
        if (!filled.ok()) return filled;
        break;
      }
      case model::InputSource::kSampleKeys:
        for (int64_t s = 0; s < samples; ++s) {
          const uint64_t key = SampleKey(seed, step, s);
          std::memcpy(numbers + s, &key, sizeof(key));
        }
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace harmony::io
