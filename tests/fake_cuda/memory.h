#pragma once

// Device memory is memory files, which live on in whoever holds a descriptor; a device address is
// where one is mapped in this process. And which host memory is registered. Under State::mutex.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/places.h"

namespace harmony::fake_cuda {

inline constexpr size_t kGranularity = size_t{2} << 20;
inline constexpr int kPoison = 0xFF;  // NaN as any floating-point type.

// A file and what belongs to it; the descriptor is closed with the last handle and mapping.
struct Physical {
  ~Physical();
  int fd = -1;
  uint64_t file_system = 0;
  uint64_t inode = 0;
  size_t size = 0;
  int device = 0;
  bool exportable = false;
};

struct Mapping {
  size_t size = 0;
  std::shared_ptr<Physical> physical;
  std::map<int, CUmemAccess_flags> access;  // By device.
};

struct Registration {
  size_t size = 0;
  uint64_t context = 0;
  bool portable = false;  // For all contexts.
  Places places;          // What it is to other processes.
};

struct Memory {
  std::map<uint64_t, std::shared_ptr<Physical>> handles;
  std::map<uint64_t, std::weak_ptr<Physical>> by_inode;  // What an import finds again.
  std::map<uintptr_t, size_t> reservations;
  std::map<uintptr_t, Mapping> mappings;
  std::map<uintptr_t, Registration> registrations;

  // What handles and mappings of this process hold of a device.
  uint64_t Held(int device) const;
};

// The entry of a map from begins to things with a size within which `address` lies, or the end.
template <typename Map>
auto FindAround(Map& map, uintptr_t address) {
  auto it = map.upper_bound(address);
  if (it == map.begin()) return map.end();
  --it;
  return address - it->first < it->second.size ? it : map.end();
}

}  // namespace harmony::fake_cuda
