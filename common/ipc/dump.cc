#include "common/ipc/dump.h"

#include <fcntl.h>

#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace harmony::ipc {
namespace {

const char* ToString(command::ObjectState state) {
  switch (state) {
    case command::ObjectState::kFree:
      return "free";
    case command::ObjectState::kClean:
      return "clean";
    case command::ObjectState::kUpdating:
      return "updating";
  }
  return "unknown";
}

void DumpHeader(const Segment& segment, std::string* out) {
  const SegmentConstants& c = segment.constants();
  absl::StrAppendFormat(out, "segment: layout version %d, %s\n", c.layout_version,
                        FormatBytesExact(Bytes(static_cast<int64_t>(c.total_bytes))));
  const std::pair<const char*, const SegmentArea*> areas[] = {{"semaphores", &c.semaphores},
                                                              {"job", &c.job},
                                                              {"records", &c.records},
                                                              {"cursors", &c.cursors},
                                                              {"data", &c.data}};
  for (const auto& [name, area] : areas) {
    absl::StrAppendFormat(out, "  %-10s at %12d, %12d bytes, %d x %d\n", name, area->offset,
                          area->bytes, area->count, area->stride);
  }
  absl::StrAppendFormat(out, "generation %d, prepared %d\n", segment.generation(),
                        segment.prepared_generation());
}

void DumpSemaphores(const Segment& segment, std::string* out) {
  const uint32_t generation = segment.generation();
  absl::StrAppendFormat(out, "semaphores of generation %d:\n", generation);
  for (uint32_t i = 0; i < kSemaphoresPerBank; ++i) {
    const uint64_t value = segment.Semaphore(generation, i).value();
    if (value == 0) continue;
    if (value == std::numeric_limits<uint64_t>::max()) {
      absl::StrAppendFormat(out, "  %3d: poisoned\n", i);
    } else {
      absl::StrAppendFormat(out, "  %3d: %d\n", i, value);
    }
  }
}

void DumpRecords(const Segment& segment, int count, std::string* out) {
  absl::StrAppend(out, "records that are not free:\n");
  for (int i = 0; i < count; ++i) {
    const absl::StatusOr<command::ObjectView> view = segment.ReadRecord(i);
    if (!view.ok()) {
      absl::StrAppendFormat(out, "  %5d: %s\n", i, std::string(view.status().message()));
    } else if (view->state != command::ObjectState::kFree) {
      absl::StrAppendFormat(out, "  %5d: %-24s %s(%d) at %d, %d bytes\n", i,
                            command::DebugString(view->key), ToString(view->state), view->version,
                            view->offset.count(), view->size.count());
    }
  }
}

void DumpCursors(const Segment& segment, int64_t count, std::string* out) {
  absl::StrAppend(out, "update cursors in progress:\n");
  for (int64_t i = 0; i < count; ++i) {
    const UpdateCursor* cursor = segment.Cursor(i);
    const uint64_t position = cursor->position.load(std::memory_order_acquire);
    const uint64_t vectors = (cursor->elements + kVectorElements - 1) / kVectorElements;
    if (cursor->target_version == 0 || position == vectors + 1) continue;
    absl::StrAppendFormat(out,
                          "  block %d chunk %d to version %d: position %d of %d, rate %.9g, clip "
                          "%.9g, gradients %d %d\n",
                          cursor->block, cursor->chunk, cursor->target_version, position, vectors,
                          cursor->learning_rate, cursor->clip_coefficient,
                          cursor->gradient_records[0], cursor->gradient_records[1]);
  }
}

}  // namespace

std::string DumpSegment(const Segment& segment) {
  std::string out;
  DumpHeader(segment, &out);
  DumpSemaphores(segment, &out);
  const absl::StatusOr<SegmentJob> job = segment.ReadJob();
  if (!job.ok()) {
    absl::StrAppend(&out, "job: ", job.status().message(), "\n");
    return out;
  }
  absl::StrAppendFormat(&out, "job %s, digest %016x: %d records, %d cursors, %s (persistent %s)\n",
                        job->id, job->digest, job->record_count, job->cursor_count,
                        FormatBytesExact(job->extent), FormatBytes(job->persistent));
  DumpRecords(segment, job->record_count, &out);
  DumpCursors(segment, job->cursor_count, &out);
  return out;
}

absl::StatusOr<std::string> DumpSegmentFile(absl::string_view path) {
  UniqueFd fd(open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, path);
  HARMONY_ASSIGN_OR_RETURN(const Segment segment, Segment::Open(std::move(fd), false));
  return DumpSegment(segment);
}

}  // namespace harmony::ipc
