#include "swapper/memory/host_arena.h"

#include "common/base/status.h"

namespace harmony::swapper {
namespace {

bool IsOurs(command::ObjectKind kind) {
  return command::TraitsOf(kind).writer == command::ObjectWriter::kSwapper;
}

std::string Describe(int record, const command::ObjectView& view) {
  if (view.state == command::ObjectState::kFree) return absl::StrCat("record ", record, " is free");
  return absl::StrCat(command::DebugString(view.key), " (record ", record, ") holds version ",
                      view.version,
                      view.state == command::ObjectState::kClean ? ", clean" : ", updating");
}

}  // namespace

absl::Status HostArena::Refresh() {
  extent_ = 0;
  record_count_ = 0;
  const absl::StatusOr<ipc::SegmentJob> job = segment_->ReadJob();
  if (absl::IsNotFound(job.status())) return absl::OkStatus();
  HARMONY_RETURN_IF_ERROR(job.status());
  extent_ = job->extent.count();
  record_count_ = job->record_count;
  return absl::OkStatus();
}

absl::Status HostArena::CheckRecordIndex(int record) const {
  if (record >= 0 && record < record_count_) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("there is no record ", record, ", the job has ", record_count_.load()));
}

absl::Status HostArena::CheckHolds(const command::Expect& expect, Bytes offset, Bytes size) const {
  HARMONY_RETURN_IF_ERROR(CheckRecordIndex(expect.record));
  HARMONY_ASSIGN_OR_RETURN(const command::ObjectView view, segment_->ReadRecord(expect.record));
  if (view.state != command::ObjectState::kClean || view.version != expect.version) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(expect.record, view), " where clean version ", expect.version, " was expected"));
  }
  if (offset < view.offset || offset + size > view.offset + view.size) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(expect.record, view), ": its data lie in [", view.offset.count(),
                     ", ", (view.offset + view.size).count(), "), [", offset.count(), ", ",
                     (offset + size).count(), ") is to be read"));
  }
  return absl::OkStatus();
}

absl::Status HostArena::Retire(int record) {
  HARMONY_RETURN_IF_ERROR(CheckRecordIndex(record));
  const absl::StatusOr<command::ObjectView> view = segment_->ReadRecord(record);
  // A damaged record is better free than damaged.
  if (view.ok() && view->state != command::ObjectState::kFree && !IsOurs(view->key.kind)) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(record, *view), ": not the swapper's to set free"));
  }
  segment_->SetFree(record);
  return absl::OkStatus();
}

absl::Status HostArena::Publish(const command::Commit& commit, Bytes offset, Bytes size) {
  HARMONY_RETURN_IF_ERROR(CheckRecordIndex(commit.record));
  if (!IsOurs(commit.key.kind)) {
    return absl::FailedPreconditionError(
        absl::StrCat(command::DebugString(commit.key), ": not the swapper's to commit"));
  }
  segment_->Publish(commit.record, {.key = commit.key,
                                    .offset = offset,
                                    .size = size,
                                    .version = commit.version,
                                    .state = command::ObjectState::kClean});
  return absl::OkStatus();
}

}  // namespace harmony::swapper
