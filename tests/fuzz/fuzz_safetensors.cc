// Safetensors files: headers that are accepted describe ranges inside the file, and their tensors
// can be read.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/io/checkpoint_reader.h"
#include "common/io/safetensors.h"
#include "common/io/weight_map.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_spec.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  static const model::ModelSpec* const model = new model::ModelSpec(model::BuildModelSpec(
      *model::ParseModelConfig(*model::PresetConfigJson("gpt2-mini"), "preset"), 64));
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto entries = io::ParseSafetensorsHeader(bytes, static_cast<int64_t>(size), "f");
  const fuzz::MemoryFile file(bytes);
  const auto reader = io::CheckpointReader::OpenFile(file.path());
  FUZZ_CHECK(entries.ok() == reader.ok());
  if (!entries.ok()) return 0;
  int64_t position = -1;
  for (const io::SafetensorsEntry& entry : *entries) {
    FUZZ_CHECK(entry.begin >= 8 && entry.begin <= entry.end);
    FUZZ_CHECK(entry.end <= static_cast<int64_t>(size));
    FUZZ_CHECK(position < 0 || entry.begin == position);
    position = entry.end;
    std::vector<float> values(static_cast<size_t>(entry.elements()));
    const absl::Status read = reader->ReadF32(entry.name, absl::MakeSpan(values));
    FUZZ_CHECK(read.ok() == io::IsFloatForUs(entry.dtype));
  }
  FUZZ_CHECK(!io::WeightMap::Match(*model, *reader).ok());  // an input is too small to match
  return 0;
}
