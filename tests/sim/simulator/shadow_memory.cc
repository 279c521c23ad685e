#include "tests/sim/simulator/shadow_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::sim {

std::string DebugString(const Tag& tag) {
  static constexpr const char* kNames[] = {"nothing",           "parameter", "activation",
                                           "boundary gradient", "gradient",  "batch input",
                                           "kept activations",  "loss"};
  return absl::StrCat(kNames[static_cast<int>(tag.content)], " ", tag.index, " microbatch ",
                      tag.microbatch, " version ", tag.version);
}

absl::Status ShadowMemory::Begin(uint64_t user, Bytes begin, Bytes size, bool write) {
  if (begin.count() < 0 || begin + size > size_) {
    return absl::InternalError(absl::StrCat("range [", begin.count(), ", +", size.count(),
                                            ") of a memory of ", size_.count(), " bytes"));
  }
  const int64_t from = begin.count(), to = (begin + size).count();
  for (const Use& use : uses_) {
    if (use.user == user || use.end <= from || to <= use.begin || !(write || use.write)) continue;
    return absl::InternalError(absl::StrCat("a ", write ? "write" : "read", " at ", from,
                                            " meets a running ", use.write ? "write" : "read",
                                            " of command ", use.user));
  }
  uses_.push_back({user, from, to, write});
  return absl::OkStatus();
}

absl::Status ShadowMemory::BeginRead(uint64_t user, Bytes begin, Bytes size) {
  return Begin(user, begin, size, false);
}

absl::Status ShadowMemory::BeginWrite(uint64_t user, Bytes begin, Bytes size) {
  HARMONY_RETURN_IF_ERROR(Begin(user, begin, size, true));
  Erase(begin.count(), (begin + size).count());
  return absl::OkStatus();
}

void ShadowMemory::EndAll(uint64_t user) {
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(),
                             [user](const Use& use) { return use.user == user; }),
              uses_.end());
}

void ShadowMemory::Erase(int64_t begin, int64_t end) {
  auto first = std::lower_bound(cells_.begin(), cells_.end(), begin,
                                [](const Cell& cell, int64_t at) { return cell.end <= at; });
  auto last = first;
  while (last != cells_.end() && last->begin < end) ++last;
  cells_.erase(first, last);
}

void ShadowMemory::Put(Bytes begin, Bytes size, const Tag& tag) {
  const int64_t from = begin.count(), to = (begin + size).count();
  auto at = std::lower_bound(cells_.begin(), cells_.end(), from,
                             [](const Cell& cell, int64_t b) { return cell.end <= b; });
  if (at != cells_.end() && at->begin == from && at->end == to) {
    at->tag = tag;
    return;
  }
  Erase(from, to);
  at = std::lower_bound(cells_.begin(), cells_.end(), from,
                        [](const Cell& cell, int64_t b) { return cell.end <= b; });
  cells_.insert(at, {from, to, tag});
}

Tag ShadowMemory::Get(Bytes begin, Bytes size) const {
  const int64_t from = begin.count(), to = (begin + size).count();
  const auto at = std::lower_bound(cells_.begin(), cells_.end(), from,
                                   [](const Cell& cell, int64_t b) { return cell.end <= b; });
  if (at == cells_.end() || at->begin != from || at->end != to) return {};
  return at->tag;
}

absl::InlinedVector<ShadowMemory::Object, 1> ShadowMemory::Contents(Bytes begin, Bytes size) const {
  const int64_t from = begin.count(), to = (begin + size).count();
  auto at = std::lower_bound(cells_.begin(), cells_.end(), from,
                             [](const Cell& cell, int64_t b) { return cell.end <= b; });
  absl::InlinedVector<Object, 1> objects;
  int64_t next = from;
  for (; at != cells_.end() && at->begin == next && at->end <= to; ++at) {
    objects.push_back({Bytes(next - from), Bytes(at->end - next), at->tag});
    next = at->end;
  }
  if (next != to) objects.clear();
  return objects;
}

absl::Status ShadowMemory::Expect(Bytes begin, Bytes size, const Tag& tag) const {
  const Tag found = Get(begin, size);
  if (found == tag) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("expected ", DebugString(tag), " at ", begin.count(),
                                          ", found ", DebugString(found)));
}

void ShadowMemory::Clear() {
  cells_.clear();
  uses_.clear();
}

}  // namespace harmony::sim
