#include "common/ipc/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/ipc/host_memory.h"

namespace harmony::ipc {
namespace {

uint64_t PageUp(uint64_t bytes) { return (bytes + kSegmentPage - 1) / kSegmentPage * kSegmentPage; }

uint64_t PageDown(Bytes bytes) {
  return static_cast<uint64_t>(bytes.count()) / kSegmentPage * kSegmentPage;
}

// XXH3-64 of a structure's bytes from `from` up to `to`.
uint64_t ChecksumOf(const void* base, size_t from, size_t to) {
  return XXH3_64bits(static_cast<const char*>(base) + from, to - from);
}

// The areas of a segment of `total` bytes; the tables grow with it and stay sparse.
SegmentConstants PlanAreas(uint64_t total) {
  SegmentConstants c;
  std::memset(static_cast<void*>(&c), 0, sizeof(c));
  c.magic = kSegmentMagic;
  c.layout_version = kSegmentLayoutVersion;
  c.header_bytes = sizeof(SegmentHeader);
  c.total_bytes = total;
  c.page_bytes = kSegmentPage;
  c.num_banks = kSemaphoreBanks;
  c.semaphores_per_bank = kSemaphoresPerBank;
  c.chunk_elements = kUpdateChunkElements;
  c.vector_elements = kVectorElements;

  uint64_t next = PageUp(sizeof(SegmentHeader));
  const auto place = [&next](uint64_t count, uint64_t stride) {
    const SegmentArea area{next, PageUp(count * stride), count, stride};
    next += area.bytes;
    return area;
  };
  c.semaphores = place(uint64_t{kSemaphoreBanks} * kSemaphoresPerBank, sizeof(SemaphoreCell));
  c.job = place(1, kJobAreaBytes);
  c.records = place(std::clamp<uint64_t>(total / 4096, 4096, 262144), sizeof(ObjectRecord));
  const uint64_t chunk_bytes =
      kUpdateChunkElements * static_cast<uint64_t>(SizeOf(DType::kF32).count());  // of masters
  // Every parameter that fits has a share of a chunk, and every block one that is not full.
  c.cursors = place(total / chunk_bytes + 1024, sizeof(UpdateCursor));
  if (next < total) c.data = place(total - next, 1);
  c.checksum = ChecksumOf(&c, 0, offsetof(SegmentConstants, checksum));
  return c;
}

absl::Status CheckConstants(const SegmentConstants& found, uint64_t file_bytes) {
  const auto damaged = [](const auto&... what) {
    return absl::DataLossError(absl::StrCat("shared segment: ", what...));
  };
  if (found.magic != kSegmentMagic) return damaged("not a segment (magic does not match)");
  if (found.layout_version != kSegmentLayoutVersion) {
    return damaged("layout version ", found.layout_version, ", this program knows version ",
                   kSegmentLayoutVersion);
  }
  if (ChecksumOf(&found, 0, offsetof(SegmentConstants, checksum)) != found.checksum) {
    return damaged("checksum of the header does not match");
  }
  if (found.total_bytes != file_bytes) {
    return damaged("header says ", found.total_bytes, " bytes, the file has ", file_bytes);
  }
  const SegmentConstants expected = PlanAreas(found.total_bytes);
  if (std::memcmp(&expected, &found, sizeof(found)) != 0) {
    return damaged("areas differ from those of layout version ", kSegmentLayoutVersion);
  }
  return absl::OkStatus();
}

uint64_t PackKey(const command::ObjectKey& key) {
  constexpr uint64_t kMask = (uint64_t{1} << 28) - 1;
  return static_cast<uint64_t>(key.kind) << 56 | (static_cast<uint64_t>(key.index) & kMask) << 28 |
         (static_cast<uint64_t>(key.number) & kMask);
}

command::ObjectKey UnpackKey(uint64_t packed) {
  constexpr uint64_t kMask = (uint64_t{1} << 28) - 1;
  return {static_cast<command::ObjectKind>(packed >> 56),
          static_cast<int32_t>(packed >> 28 & kMask), static_cast<int32_t>(packed & kMask)};
}

uint64_t RecordChecksum(uint64_t offset, uint64_t size, uint64_t key) {
  const uint64_t fields[3] = {offset, size, key};
  return XXH3_64bits(fields, sizeof(fields));
}

}  // namespace

Segment::Capacity Segment::CapacityOf(Bytes total) {
  const SegmentConstants constants = PlanAreas(PageDown(total));
  return {Bytes(static_cast<int64_t>(constants.data.bytes)),
          static_cast<int64_t>(constants.records.count),
          static_cast<int64_t>(constants.cursors.count)};
}

Bytes Segment::SizeFor(Bytes arena) {
  Bytes total = arena.AlignUp(kSegmentPage);
  // The tables grow far less than the segment, so this comes to an end.
  for (;;) {
    const Bytes lacks = arena - CapacityOf(total).arena;
    if (lacks <= Bytes(0)) return total;
    total += lacks.AlignUp(kSegmentPage);
  }
}

absl::StatusOr<Segment> Segment::Create(Bytes total) {
  const uint64_t bytes = PageDown(total);
  const SegmentConstants constants = PlanAreas(bytes);
  if (constants.data.bytes == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "host_memory of ", FormatBytesExact(total), " leaves no room for an arena: the tables of a",
        " segment alone need ",
        FormatBytes(
            Bytes(static_cast<int64_t>(constants.cursors.offset + constants.cursors.bytes)))));
  }
  HARMONY_ASSIGN_OR_RETURN(UniqueFd fd,
                           CreateSealedMemory("harmony-segment", Bytes(static_cast<int64_t>(bytes)),
                                              "the shared segment"));
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(constants.records.offset)) != 0) {
    return absl::ResourceExhaustedError("no memory for the fixed areas of the shared segment");
  }
  absl::StatusOr<MappedRegion> map = MappedRegion::Map(fd.get());
  if (!map.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("host_memory of ", FormatBytesExact(total),
                                                   " is more than can be addressed here (",
                                                   map.status().message(), "): give less"));
  }
  std::memcpy(map->data(), &constants, sizeof(constants));
  return Segment(std::move(fd), *std::move(map));
}

absl::StatusOr<Segment> Segment::Open(UniqueFd fd, bool writable) {
  HARMONY_ASSIGN_OR_RETURN(MappedRegion map, MappedRegion::Map(fd.get(), Bytes(), writable));
  if (map.size().count() < static_cast<int64_t>(sizeof(SegmentHeader))) {
    return absl::DataLossError(absl::StrCat("shared segment: ", map.size().count(), " bytes only"));
  }
  SegmentConstants constants;
  std::memcpy(static_cast<void*>(&constants), map.data(), sizeof(constants));
  HARMONY_RETURN_IF_ERROR(CheckConstants(constants, static_cast<uint64_t>(map.size().count())));
  return Segment(std::move(fd), std::move(map));
}

absl::Status Segment::KeepOnlySemaphoresWritable() {
  const SegmentConstants& c = constants();
  const uint64_t behind = c.semaphores.offset + c.semaphores.bytes;
  const auto read_only = [&](uint64_t begin, uint64_t end) {
    return mprotect(map_.data() + begin, end - begin, PROT_READ) == 0;
  };
  if (read_only(0, c.semaphores.offset) && read_only(behind, c.total_bytes)) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "protecting the shared segment from writes");
}

Bytes Segment::arena_size() const { return Bytes(static_cast<int64_t>(constants().data.bytes)); }

std::byte* Segment::Arena(Bytes offset) const {
  return map_.data() + constants().data.offset + offset.count();
}

// ---- Jobs ----

JobHeader* Segment::job_header() const {
  return reinterpret_cast<JobHeader*>(map_.data() + constants().job.offset);
}

absl::Status Segment::PunchOut(const SegmentArea& area) {
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(area.offset), static_cast<off_t>(area.bytes)) != 0) {
    return absl::ErrnoToStatus(errno, "giving memory of the shared segment back");
  }
  return absl::OkStatus();
}

absl::Status Segment::AllocatePages(const SegmentArea& area, uint64_t bytes, const char* what) {
  if (bytes == 0) return absl::OkStatus();
  int failed = 0;
  do {  // a stop or a suspended machine interrupts it
    failed =
        fallocate(fd_.get(), 0, static_cast<off_t>(area.offset), static_cast<off_t>(PageUp(bytes)));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocating ", FormatBytesExact(Bytes(static_cast<int64_t>(bytes))), " for ",
                     what, ": ", std::generic_category().message(errno)));
  }
  return absl::OkStatus();
}

absl::Status Segment::AllocateJob(const SegmentJob& job) {
  JobHeader* header = job_header();
  if (header->state.load(std::memory_order_acquire) !=
      static_cast<uint64_t>(SegmentJobState::kNone)) {
    return absl::AlreadyExistsError("the shared segment holds a job already");
  }
  if (job.id.size() >= sizeof(header->id) || job.text.size() > kMaxJobText) {
    return absl::InvalidArgumentError("job id or description too long for the shared segment");
  }
  if (job.record_count > record_capacity() || job.cursor_count > cursor_capacity()) {
    return absl::InvalidArgumentError(absl::StrCat(  // waiting brings no more of what is fixed
        "the job needs ", job.record_count, " object records and ", job.cursor_count,
        " update cursors, the segment has ", record_capacity(), " and ", cursor_capacity()));
  }
  if (job.extent > arena_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job needs ", FormatBytesExact(job.extent),
                     " of host memory, the arena has ", FormatBytesExact(arena_size()), ": ",
                     FormatBytesExact(job.extent - arena_size()), " are missing (host_memory)"));
  }
  HARMONY_RETURN_IF_ERROR(ReleaseJob());  // leftovers
  if (const Bytes available = AvailableHostMemory(); job.extent > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job needs ", FormatBytesExact(job.extent), " of host memory, ",
                     FormatBytesExact(available),
                     " are available: ", FormatBytesExact(job.extent - available), " are missing"));
  }
  const SegmentConstants& c = constants();
  const uint64_t records = static_cast<uint64_t>(job.record_count);
  const uint64_t cursors = static_cast<uint64_t>(job.cursor_count);
  absl::Status status = AllocatePages(c.records, records * sizeof(ObjectRecord), "object records");
  if (status.ok()) {
    status = AllocatePages(c.cursors, cursors * sizeof(UpdateCursor), "update cursors");
  }
  if (status.ok()) {
    status = AllocatePages(c.data, static_cast<uint64_t>(job.extent.count()), "the job's arena");
  }
  if (!status.ok()) {
    HARMONY_RETURN_IF_ERROR(ReleaseJob());
    return status;
  }

  std::memset(header->id, 0, sizeof(header->id));
  std::memcpy(header->id, job.id.data(), job.id.size());
  header->digest = job.digest;
  header->record_count = records;
  header->cursor_count = cursors;
  header->extent_bytes = static_cast<uint64_t>(job.extent.count());
  header->persistent_bytes = static_cast<uint64_t>(job.persistent.count());
  header->text_bytes = job.text.size();
  std::memcpy(reinterpret_cast<char*>(header) + sizeof(JobHeader), job.text.data(),
              job.text.size());
  header->text_checksum = XXH3_64bits(job.text.data(), job.text.size());
  header->checksum = ChecksumOf(header, offsetof(JobHeader, digest), offsetof(JobHeader, checksum));
  header->state.store(static_cast<uint64_t>(SegmentJobState::kActive), std::memory_order_release);
  return absl::OkStatus();
}

Bytes Segment::MemoryWith(const SegmentJob& job) const {
  const uint64_t bytes = constants().records.offset +
                         PageUp(static_cast<uint64_t>(job.record_count) * sizeof(ObjectRecord)) +
                         PageUp(static_cast<uint64_t>(job.cursor_count) * sizeof(UpdateCursor)) +
                         PageUp(static_cast<uint64_t>(job.extent.count()));
  return Bytes(static_cast<int64_t>(bytes));
}

absl::Status Segment::ReleaseJob() {
  job_header()->state.store(static_cast<uint64_t>(SegmentJobState::kNone),
                            std::memory_order_release);
  HARMONY_RETURN_IF_ERROR(PunchOut(constants().records));
  HARMONY_RETURN_IF_ERROR(PunchOut(constants().cursors));
  return PunchOut(constants().data);
}

absl::StatusOr<SegmentJob> Segment::ReadJob() const {
  const JobHeader* header = job_header();
  if (header->state.load(std::memory_order_acquire) !=
      static_cast<uint64_t>(SegmentJobState::kActive)) {
    return absl::NotFoundError("the shared segment holds no job");
  }
  if (ChecksumOf(header, offsetof(JobHeader, digest), offsetof(JobHeader, checksum)) !=
      header->checksum) {
    return absl::DataLossError("shared segment: checksum of the job header does not match");
  }
  const char* text = reinterpret_cast<const char*>(header) + sizeof(JobHeader);
  if (header->text_bytes > kMaxJobText ||
      XXH3_64bits(text, header->text_bytes) != header->text_checksum) {
    return absl::DataLossError("shared segment: checksum of the job's text does not match");
  }
  SegmentJob job;
  job.id.assign(header->id, strnlen(header->id, sizeof(header->id)));
  job.digest = header->digest;
  job.record_count = static_cast<int>(header->record_count);
  job.cursor_count = static_cast<int64_t>(header->cursor_count);
  job.extent = Bytes(static_cast<int64_t>(header->extent_bytes));
  job.persistent = Bytes(static_cast<int64_t>(header->persistent_bytes));
  job.text.assign(text, header->text_bytes);
  return job;
}

// ---- Records ----

ObjectRecord* Segment::RecordAt(int record) const {
  return reinterpret_cast<ObjectRecord*>(map_.data() + constants().records.offset) + record;
}

absl::StatusOr<command::ObjectView> Segment::ReadRecord(int record) const {
  const ObjectRecord* r = RecordAt(record);
  // The fields change only while the word says free: equal words around the reads mean that the
  // fields belong to the word. (A writer that frees and publishes the very same version again in
  // between writes the same object; the checksum covers a mixture.)
  while (true) {
    const uint64_t word = r->word.load(std::memory_order_acquire);
    command::ObjectView view;
    view.version = word >> 2;
    view.state = static_cast<command::ObjectState>(word & 3);
    if (view.state == command::ObjectState::kFree) return view;
    const uint64_t offset = r->offset.load(std::memory_order_acquire);
    const uint64_t size = r->size.load(std::memory_order_acquire);
    const uint64_t key = r->key.load(std::memory_order_acquire);
    const uint64_t checksum = r->checksum.load(std::memory_order_acquire);
    if (r->word.load(std::memory_order_relaxed) != word) continue;
    if (RecordChecksum(offset, size, key) != checksum) {
      return absl::DataLossError(
          absl::StrCat("shared segment: checksum of record ", record, " does not match"));
    }
    view.key = UnpackKey(key);
    view.offset = Bytes(static_cast<int64_t>(offset));
    view.size = Bytes(static_cast<int64_t>(size));
    return view;
  }
}

absl::StatusOr<std::vector<command::ObjectView>> Segment::ReadRecords(int count) const {
  std::vector<command::ObjectView> views(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    HARMONY_ASSIGN_OR_RETURN(views[static_cast<size_t>(i)], ReadRecord(i));
  }
  return views;
}

void Segment::Publish(int record, const command::ObjectView& view) {
  ObjectRecord* r = RecordAt(record);
  const uint64_t offset = static_cast<uint64_t>(view.offset.count());
  const uint64_t size = static_cast<uint64_t>(view.size.count());
  const uint64_t key = PackKey(view.key);
  const uint64_t checksum = RecordChecksum(offset, size, key);
  const bool same = r->offset.load(std::memory_order_relaxed) == offset &&
                    r->size.load(std::memory_order_relaxed) == size &&
                    r->key.load(std::memory_order_relaxed) == key &&
                    r->checksum.load(std::memory_order_relaxed) == checksum;
  if (!same) {
    SetFree(record);
    r->offset.store(offset, std::memory_order_release);
    r->size.store(size, std::memory_order_release);
    r->key.store(key, std::memory_order_release);
    r->checksum.store(checksum, std::memory_order_release);
  }
  r->word.store(view.version << 2 | static_cast<uint64_t>(view.state), std::memory_order_release);
}

void Segment::SetFree(int record) { RecordAt(record)->word.store(0, std::memory_order_seq_cst); }

UpdateCursor* Segment::Cursor(int64_t index) const {
  return reinterpret_cast<UpdateCursor*>(map_.data() + constants().cursors.offset) + index;
}

// ---- Generations ----

SemaphoreCell* Segment::Bank(uint32_t bank) const {
  return reinterpret_cast<SemaphoreCell*>(map_.data() + constants().semaphores.offset) +
         size_t{bank} * kSemaphoresPerBank;
}

absl::Status Segment::RaiseGeneration(uint32_t generation) {
  std::atomic<uint32_t>& word = header()->generation;
  uint32_t current = word.load();
  while (current < generation && !word.compare_exchange_weak(current, generation)) {
  }
  if (current > generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", generation, " is over: the segment is at ", current));
  }
  for (uint32_t bank = 0; bank < kSemaphoreBanks; ++bank) {
    if (bank == generation % kSemaphoreBanks && prepared_generation() == generation) continue;
    for (uint32_t i = 0; i < kSemaphoresPerBank; ++i) TimelineSemaphore(Bank(bank) + i).Poison();
  }
  return absl::OkStatus();
}

absl::Status Segment::BeginGeneration(uint32_t generation) {
  if (this->generation() != generation) {
    return absl::FailedPreconditionError(absl::StrCat("cannot begin generation ", generation,
                                                      ": the segment is at ", this->generation()));
  }
  SemaphoreCell* bank = Bank(generation % kSemaphoreBanks);
  for (uint32_t i = 0; i < kSemaphoresPerBank; ++i) {
    bank[i].value.store(0);
    bank[i].waiters.store(0);
  }
  header()->prepared_generation.store(generation, std::memory_order_release);
  return absl::OkStatus();
}

TimelineSemaphore Segment::Semaphore(uint32_t generation, uint32_t index) const {
  return TimelineSemaphore(Bank(generation % kSemaphoreBanks) + index);
}

// ---- Update chunks ----

int64_t UpdateChunks(int64_t elements) {
  const int64_t chunk = static_cast<int64_t>(kUpdateChunkElements);
  return (elements + chunk - 1) / chunk;
}

int64_t CursorBase(const model::ModelSpec& model, int blocks) {
  int64_t base = 0;
  for (int b = 0; b < blocks; ++b) {
    base += UpdateChunks(model.blocks[static_cast<size_t>(b)].elements());
  }
  return base;
}

}  // namespace harmony::ipc
