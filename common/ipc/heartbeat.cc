#include "common/ipc/heartbeat.h"

#include <fcntl.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace harmony::ipc {
namespace {

Bytes SizeOfTable(int64_t cells) {
  return Bytes(static_cast<int64_t>(sizeof(HeartbeatHeader)) +
               cells * static_cast<int64_t>(sizeof(HeartbeatCell)));
}

HeartbeatHeader* HeaderOf(const MappedRegion& map) {
  return reinterpret_cast<HeartbeatHeader*>(map.data());
}

HeartbeatCell* CellOf(const MappedRegion& map, int cell) {
  return reinterpret_cast<HeartbeatCell*>(map.data() + sizeof(HeartbeatHeader)) + cell;
}

}  // namespace

absl::StatusOr<HeartbeatTable> HeartbeatTable::Create(int cells) {
  HARMONY_ASSIGN_OR_RETURN(UniqueFd fd,
                           CreateSealedMemory("harmony-heartbeats", SizeOfTable(cells)));
  HARMONY_ASSIGN_OR_RETURN(MappedRegion map, MappedRegion::Map(fd.get()));
  *HeaderOf(map) = {kHeartbeatMagic, kHeartbeatLayoutVersion, static_cast<uint32_t>(cells), {}};
  return HeartbeatTable(std::move(fd), std::move(map));
}

HeartbeatCell* HeartbeatTable::Cell(int cell) const { return CellOf(map_, cell); }

std::string HeartbeatTable::VariableFor(int cell) const { return absl::StrCat(fd(), ":", cell); }

uint64_t HeartbeatTable::beats(int cell) const {
  return Cell(cell)->beats.load(std::memory_order_relaxed);
}

void HeartbeatTable::Reset(int cell) { Cell(cell)->beats.store(0, std::memory_order_relaxed); }

absl::StatusOr<Heartbeat> Heartbeat::Inherited() {
  const char* const text = std::getenv(kHeartbeatVariable);
  if (text == nullptr) return Heartbeat();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, ':');
  int number = -1, cell = -1;
  if (!absl::SimpleAtoi(parts.first, &number) || !absl::SimpleAtoi(parts.second, &cell) ||
      number < 0 || cell < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(kHeartbeatVariable, ": '", text, "' is not descriptor:cell"));
  }
  if (fcntl(number, F_GETFD) < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(kHeartbeatVariable, ": descriptor ", number, " is not open"));
  }
  const UniqueFd fd(number);  // the mapping lives on without it
  Heartbeat heartbeat;
  HARMONY_ASSIGN_OR_RETURN(heartbeat.map_, MappedRegion::Map(fd.get()));
  const bool has_header = heartbeat.map_.size() >= SizeOfTable(0);
  const HeartbeatHeader* const header = HeaderOf(heartbeat.map_);
  if (!has_header || header->magic != kHeartbeatMagic ||
      header->layout_version != kHeartbeatLayoutVersion ||
      heartbeat.map_.size() != SizeOfTable(header->cells) ||
      static_cast<uint32_t>(cell) >= header->cells) {
    return absl::DataLossError(absl::StrCat(kHeartbeatVariable, ": '", text,
                                            "' names no cell of a table of version ",
                                            kHeartbeatLayoutVersion));
  }
  heartbeat.cell_ = CellOf(heartbeat.map_, cell);
  return heartbeat;
}

}  // namespace harmony::ipc
