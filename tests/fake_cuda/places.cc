#include "tests/fake_cuda/places.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// The part of [begin, begin + bytes) of what `places` are from its first byte on.
Places Part(const Places& places, uint64_t begin, uint64_t bytes) {
  Places part;
  uint64_t skipped = 0;
  for (const Place& place : places) {
    const uint64_t size = place.end - place.begin;
    const uint64_t from = std::max(begin, skipped);
    const uint64_t to = std::min(begin + bytes, skipped + size);
    if (from < to) {
      part.push_back({place.device, place.inode, place.begin + (from - skipped),
                      place.begin + (to - skipped)});
    }
    skipped += size;
  }
  return part;
}

// A line of /proc/self/maps, cut to what is asked for.
struct MapsLine {
  uint64_t from = 0, to = 0;
  bool writable = false;
  Place place;
};

std::vector<MapsLine> ReadMaps(const void* pointer, size_t bytes) {
  const uint64_t begin = AddressOf(pointer), end = begin + bytes;
  std::vector<MapsLine> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t first = 0, last = 0, offset = 0, inode = 0;
    unsigned int major_number = 0, minor_number = 0;
    char access[5] = {};
    if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &first,
               &last, access, &offset, &major_number, &minor_number, &inode) != 7) {
      continue;
    }
    const uint64_t from = std::max(begin, first), to = std::min(end, last);
    if (from >= to) continue;
    const bool own = inode == 0;
    const uint64_t at = own ? from : offset + (from - first);
    const uint64_t device = own ? kOwnMemory : makedev(major_number, minor_number);
    found.push_back(
        {from,
         to,
         access[1] == 'w',
         {device, own ? static_cast<uint64_t>(getpid()) : inode, at, at + (to - from)}});
  }
  return found;
}

}  // namespace

Places FindPlaces(const void* begin, size_t bytes) {
  Places places;
  for (const MapsLine& line : ReadMaps(begin, bytes)) places.push_back(line.place);
  return places;
}

bool IsWritable(const void* begin, size_t bytes) {
  uint64_t at = AddressOf(begin);
  for (const MapsLine& line : ReadMaps(begin, bytes)) {
    if (line.from != at || !line.writable) return false;
    at = line.to;
  }
  return at == AddressOf(begin) + bytes;
}

Places PlacesOf(const void* pointer, size_t bytes) {
  const Memory& memory = TheState().memory;
  const uintptr_t begin = AddressOf(pointer);
  const auto registered = FindAround(memory.registrations, begin);
  if (registered != memory.registrations.end() &&
      begin + bytes <= registered->first + registered->second.size) {
    return Part(registered->second.places, begin - registered->first, bytes);
  }
  Places places;
  uintptr_t at = begin;
  while (at < begin + bytes) {
    const auto mapping = FindAround(memory.mappings, at);
    if (mapping == memory.mappings.end()) return FindPlaces(pointer, bytes);
    const uintptr_t end = std::min(begin + bytes, mapping->first + mapping->second.size);
    const Physical& physical = *mapping->second.physical;
    places.push_back(
        {physical.file_system, physical.inode, at - mapping->first, end - mapping->first});
    at = end;
  }
  return places;
}

}  // namespace harmony::fake_cuda
