// Any bytes as a file of arrays: an error, or an array whose samples can all be read.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/io/array_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const fuzz::MemoryFile file(bytes);
  const auto array = io::ArrayFile::Open(file.path(), "a");
  if (!array.ok()) return 0;
  FUZZ_CHECK(array->sample_bytes() * array->samples() <= static_cast<int64_t>(size));
  std::vector<char> sample(static_cast<size_t>(array->sample_bytes()));
  for (int64_t i = 0; i < array->samples() && array->sample_bytes() > 0; ++i) {
    FUZZ_CHECK(array->Read(i, 1, sample.data()).ok());
  }
  array->FindOutOfRange({10}).IgnoreError();
  return 0;
}
