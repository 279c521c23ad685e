#pragma once

// Safetensors files spelled out byte by byte, as another program might have written them.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace harmony::io {

inline std::string SafetensorsBytes(absl::string_view header, absl::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i)
    bytes += static_cast<char>((uint64_t{header.size()} >> (8 * i)) & 255);
  bytes.append(header.data(), header.size());
  bytes.append(data.data(), data.size());
  return bytes;
}

}  // namespace harmony::io
