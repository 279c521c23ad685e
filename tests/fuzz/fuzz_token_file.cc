// Token files: the first four bytes choose format, vocabulary, sequence length and batch. After
// Validate, every sequence can be read and holds only valid tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/io/sequence_order.h"
#include "common/io/token_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  if (size < 4) return 0;
  const job::DataFormat format = static_cast<job::DataFormat>(data[0] % 3);
  const int64_t vocab = int64_t{1} + data[1] * (data[0] < 128 ? 1 : 300);
  const int64_t length = 1 + data[2] % 64, batch = 1 + data[3] % 8;
  const fuzz::MemoryFile contents(
      absl::string_view(reinterpret_cast<const char*>(data) + 4, size - 4));
  const auto file = io::TokenFile::Open(contents.path(), format);
  if (!file.ok() || !file->Validate(vocab, length, batch).ok()) return 0;
  const int64_t count = file->SequenceCount(length);
  FUZZ_CHECK(count >= batch);
  const io::SequenceOrder order(count, batch, /*shuffle=*/true, data[1]);
  std::vector<int32_t> tokens(static_cast<size_t>(length + 1));
  for (int64_t i = 0; i < std::min<int64_t>(count, 64); ++i) {
    const int64_t sequence = order.SequenceIndex(i, 0);
    FUZZ_CHECK(sequence >= 0 && sequence < count);
    FUZZ_CHECK(file->ReadSequence(sequence, absl::MakeSpan(tokens)).ok());
    for (int32_t token : tokens) FUZZ_CHECK(token >= 0 && token < vocab);
  }
  return 0;
}
