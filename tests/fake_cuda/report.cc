#include "tests/fake_cuda/report.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace harmony::fake_cuda {

void Say(absl::string_view line) {
  // One write, so that lines of several processes do not mix.
  const std::string text = absl::StrCat("fake_cuda: ", line, " [process ", getpid(), "]\n");
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

CUresult Refuse(CUresult result, absl::string_view why) {
  Say(absl::StrCat(why, " (error ", static_cast<int>(result), ")"));
  return result;
}

void Die(absl::string_view why) {
  Say(why);
  abort();
}

std::string FormatRange(const void* begin, size_t bytes) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(begin)), " (", bytes, " bytes)");
}

}  // namespace harmony::fake_cuda
