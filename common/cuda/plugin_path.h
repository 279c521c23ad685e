#pragma once

// Where the library is that computes on GPUs (worker/cuda), which is built where nvcc is.

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace harmony::cuda {

// The library's path, for tests; else it is looked for in the folder lib beside that of the
// program.
inline constexpr char kPluginVariable[] = "HARMONY_CUDA_PLUGIN";

inline std::filesystem::path PluginPath() {
  if (const char* given = std::getenv(kPluginVariable)) return given;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "lib" / "harmony" / "libharmony_cuda.so";
}

}  // namespace harmony::cuda
