#pragma once

// What a batch brings besides the job's data, made from them and from the seed: how many labels
// count, and a random number for each sample. Pure functions of their arguments, so that a step
// that is repeated after a death, on whatever devices, has the same.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"

namespace harmony::io {

// A random number of a sample in a step (both from 0): what is drawn for it begins there.
uint64_t SampleKey(uint64_t seed, int64_t step, int64_t sample);

// Fills the inputs that no data bring. `places` has the samples of each of the model's inputs, in
// which those of the data are there already. InvalidArgument when no label of the batch counts.
absl::Status FillDerivedInputs(const model::ModelSpec& model, uint64_t seed, int64_t step,
                               int64_t samples, absl::Span<std::byte* const> places);

}  // namespace harmony::io
