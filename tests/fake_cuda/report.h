#pragma once

// What the fake driver says on stderr: lines that begin with "fake_cuda:". Any thread.

#include <cuda.h>

#include <string>

#include "absl/strings/string_view.h"

namespace harmony::fake_cuda {

void Say(absl::string_view line);

// For a call that a real driver would refuse without telling why: says why, and gives `result`.
CUresult Refuse(CUresult result, absl::string_view why);

// For what a real driver would answer with wrong results at some later time.
[[noreturn]] void Die(absl::string_view why);

// "0x7f0012340000 (4096 bytes)".
std::string FormatRange(const void* begin, size_t bytes);

}  // namespace harmony::fake_cuda
