#pragma once

// What the kernel says of a mapping of this process.

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace harmony::ipc {

// The VmFlags of the mapping that an address lies in, as proc(5) has them: "rd wr sh dd".
inline std::string MemoryFlags(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool in_it = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      in_it = begin <= wanted && wanted < end;
    } else if (in_it && line.rfind("VmFlags: ", 0) == 0) {
      return line.substr(9);
    }
  }
  return "";
}

}  // namespace harmony::ipc
