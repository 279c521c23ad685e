#pragma once

// What an address means to all processes: bytes of a file, or of one process's own memory. Under
// State::mutex.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace harmony::fake_cuda {

struct Place {
  uint64_t device = 0;  // Of the file system; kOwnMemory: `inode` is a process.
  uint64_t inode = 0;
  uint64_t begin = 0;  // In the file, or the address.
  uint64_t end = 0;
};
inline constexpr uint64_t kOwnMemory = ~uint64_t{0};

// Places that follow each other from an address on.
using Places = std::vector<Place>;

// From /proc/self/maps: slow, so it is done once for what is registered.
Places FindPlaces(const void* begin, size_t bytes);

// Whether all of it is mapped, and writable: what a driver pins has to be.
bool IsWritable(const void* begin, size_t bytes);

// Of device memory or registered memory where it is such, otherwise by FindPlaces.
Places PlacesOf(const void* begin, size_t bytes);

}  // namespace harmony::fake_cuda
