#include "worker/optimizer/protected_update.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/sum_tree.h"

namespace harmony::worker {
namespace {

// One update of one block: its place in the segment and what is known about it.
class BlockUpdate {
 public:
  BlockUpdate(ipc::Segment& segment, const model::ModelSpec& model,
              const command::ObjectTableLayout& layout, const OptimizerSettings& settings,
              const ProtectedUpdate& update)
      : segment_(segment),
        block_(model.blocks[static_cast<size_t>(update.block)]),
        settings_(settings),
        update_(update),
        target_(static_cast<uint64_t>(update.hyper.step)),
        first_cursor_(ipc::CursorBase(model, update.block)) {
    const int parts = 1 + settings.moments;
    for (int part = 0; part < parts; ++part) {
      const command::ObjectKey key{static_cast<command::ObjectKind>(
                                       static_cast<int>(command::ObjectKind::kParameter) + part),
                                   update.block, 0};
      const Bytes size = part == 0 ? block_.weight_bytes : block_.moment_bytes;
      views_.push_back(
          {key, command::PersistentOffset(model, key), size, 0, command::ObjectState::kFree});
      records_.push_back(layout.IndexOf(key));
    }
    state_ = StateInSegment(segment, model, settings.moments, update.block);
  }

  absl::Status Run(ThreadPool& pool, Isa isa) {
    HARMONY_ASSIGN_OR_RETURN(const Stage stage, ReadStage());
    if (stage == Stage::kDone) return absl::OkStatus();
    HARMONY_ASSIGN_OR_RETURN(
        gradient_, GradientFromRecords(segment_, block_, update_.gradient_records, target_));
    if (stage == Stage::kNotStarted) {
      Start();
    } else {
      HARMONY_RETURN_IF_ERROR(CheckCursors());
      // Whoever finished a chunk before may have died with what it had found in there. One gradient
      // alone was looked at on its device.
      if (gradient_.size() > 1 && !std::isfinite(BlockSquaredNorm(block_, gradient_, pool, isa))) {
        return NotFinite();
      }
    }
    const Kernels& kernels = KernelsFor(isa);
    pool.ParallelFor(num_chunks(), [&](int64_t chunk) { RunChunk(chunk, kernels); });
    if (not_finite_) return NotFinite();
    SetState(command::ObjectState::kClean);
    return absl::OkStatus();
  }

 private:
  enum class Stage { kNotStarted, kUnderWay, kDone };

  absl::Status NotFinite() const {
    return absl::OutOfRangeError(
        absl::StrCat("the sum of the gradients of '", block_.name, "' is not finite"));
  }

  int64_t num_chunks() const { return ipc::UpdateChunks(block_.elements()); }

  // What the records say; the parameter's decides, its moments may only lag behind as the order of
  // the stores allows.
  absl::StatusOr<Stage> ReadStage() const {
    std::vector<command::ObjectView> found;
    for (int record : records_) {
      HARMONY_ASSIGN_OR_RETURN(command::ObjectView view, segment_.ReadRecord(record));
      found.push_back(view);
    }
    const auto is = [&](size_t part, command::ObjectState state, uint64_t version) {
      return found[part].state == state && found[part].version == version;
    };
    std::optional<Stage> stage;
    if (is(0, command::ObjectState::kClean, target_)) stage = Stage::kDone;
    if (is(0, command::ObjectState::kUpdating, target_)) stage = Stage::kUnderWay;
    if (is(0, command::ObjectState::kClean, target_ - 1)) stage = Stage::kNotStarted;
    bool consistent = stage.has_value();
    for (size_t part = 0; part < found.size() && consistent; ++part) {
      consistent =
          found[part].offset == views_[part].offset && found[part].size == views_[part].size;
      if (part == 0 || !consistent) continue;
      const bool old = is(part, command::ObjectState::kClean, target_ - 1);
      const bool updating = is(part, command::ObjectState::kUpdating, target_);
      const bool done = is(part, command::ObjectState::kClean, target_);
      consistent = *stage == Stage::kNotStarted ? old || updating
                   : *stage == Stage::kUnderWay ? updating || done
                                                : done;
    }
    if (!consistent) {
      std::string text =
          absl::StrCat("cannot update '", block_.name, "' to version ", target_, ":");
      for (const command::ObjectView& view : found) {
        absl::StrAppend(&text, " ", command::DebugString(view.key), " state ",
                        static_cast<int>(view.state), " version ", view.version, ";");
      }
      return absl::FailedPreconditionError(text);
    }
    return *stage;
  }

  void Start() {
    for (int64_t chunk = 0; chunk < num_chunks(); ++chunk) {
      ipc::UpdateCursor* cursor = segment_.Cursor(first_cursor_ + chunk);
      FillHeader(cursor, chunk);
      cursor->position.store(0, std::memory_order_release);
    }
    SetState(command::ObjectState::kUpdating);
  }

  // Moments first, the parameter last.
  void SetState(command::ObjectState state) {
    for (size_t part = records_.size(); part-- > 0;) {
      views_[part].state = state;
      views_[part].version = target_;
      segment_.Publish(records_[part], views_[part]);
    }
  }

  void FillHeader(ipc::UpdateCursor* cursor, int64_t chunk) const {
    cursor->target_version = target_;
    cursor->block = update_.block;
    cursor->chunk = static_cast<int32_t>(chunk);
    cursor->learning_rate = update_.hyper.learning_rate;
    cursor->clip_coefficient = update_.hyper.clip_coefficient;
    cursor->elements = static_cast<uint64_t>(End(chunk) - Begin(chunk));
    const absl::Span<const int> records = update_.gradient_records;
    for (size_t i = 0; i < 2; ++i)
      cursor->gradient_records[i] = i < records.size() ? records[i] : -1;
    const absl::Span<const int> more = records.subspan(std::min<size_t>(records.size(), 2));
    cursor->more_gradients = more.empty() ? 0 : XXH3_64bits(more.data(), more.size() * sizeof(int));
    cursor->checksum = XXH3_64bits(cursor, offsetof(ipc::UpdateCursor, checksum));
  }

  // Before an update goes on: every cursor must be of this very update.
  absl::Status CheckCursors() const {
    for (int64_t chunk = 0; chunk < num_chunks(); ++chunk) {
      const ipc::UpdateCursor* cursor = segment_.Cursor(first_cursor_ + chunk);
      ipc::UpdateCursor expected;
      FillHeader(&expected, chunk);
      const uint64_t vectors =
          (expected.elements + ipc::kVectorElements - 1) / ipc::kVectorElements;
      if (std::memcmp(&expected, cursor, offsetof(ipc::UpdateCursor, position)) != 0 ||
          cursor->position.load(std::memory_order_acquire) > vectors + 1) {
        return absl::DataLossError(absl::StrCat("cursor of '", block_.name, "' chunk ", chunk,
                                                " does not belong to the update to version ",
                                                target_));
      }
    }
    return absl::OkStatus();
  }

  int64_t Begin(int64_t chunk) const {
    return chunk * static_cast<int64_t>(ipc::kUpdateChunkElements);
  }
  int64_t End(int64_t chunk) const { return std::min(block_.elements(), Begin(chunk + 1)); }

  void RunChunk(int64_t chunk, const Kernels& kernels) {
    ipc::UpdateCursor* cursor = segment_.Cursor(first_cursor_ + chunk);
    const int64_t vector_elements = static_cast<int64_t>(ipc::kVectorElements);
    const int64_t begin = Begin(chunk), end = End(chunk);
    const int64_t vectors = (end - begin + vector_elements - 1) / vector_elements;
    const int64_t position = static_cast<int64_t>(cursor->position.load(std::memory_order_acquire));
    if (position == vectors + 1) return;
    UpdateRange range;
    range.gradients = TermsOf(block_, gradient_);
    range.begin = begin;
    range.end = end;
    range.cursor = cursor;
    range.cursor_base = begin;
    range.not_finite = &not_finite_;
    const ipc::UndoSlot* half_written = nullptr;
    if (position > 0) {
      range.begin = begin + (position - 1) * vector_elements;
      half_written = &cursor->slots[(position - 1) % 2];
    }
    UpdateElements(block_, settings_, update_.hyper, state_, range, kernels, half_written);
    cursor->position.store(static_cast<uint64_t>(vectors + 1), std::memory_order_release);
  }

  ipc::Segment& segment_;
  const model::ParamBlock& block_;
  const OptimizerSettings& settings_;
  const ProtectedUpdate& update_;
  const uint64_t target_;
  const int64_t first_cursor_;
  std::vector<command::ObjectView> views_;  // parameter, then moments
  std::vector<int> records_;
  BlockState state_;
  BlockGradient gradient_;
  std::atomic<bool> not_finite_ = false;
};

}  // namespace

BlockState StateInSegment(const ipc::Segment& segment, const model::ModelSpec& model, int moments,
                          int block) {
  const auto at = [&](command::ObjectKind kind) {
    return segment.Arena(command::PersistentOffset(model, {kind, block, 0}));
  };
  BlockState state;
  state.weights = at(command::ObjectKind::kParameter);
  if (moments > 0) state.m = reinterpret_cast<float*>(at(command::ObjectKind::kMoment1));
  if (moments > 1) state.v = reinterpret_cast<float*>(at(command::ObjectKind::kMoment2));
  if (model.blocks[static_cast<size_t>(block)].has_masters) {
    state.masters =
        reinterpret_cast<float*>(segment.Arena(command::MasterOffset(model, moments, block)));
  }
  return state;
}

absl::StatusOr<BlockGradient> GradientFromRecords(const ipc::Segment& segment,
                                                  const model::ParamBlock& block,
                                                  absl::Span<const int> records, uint64_t version) {
  if (records.empty()) {
    return absl::InternalError(absl::StrCat("'", block.name, "' has no gradient"));
  }
  const size_t references = std::max<size_t>(block.references.size(), 1);
  if (records.size() % references != 0 ||
      !model::IsPowerOfTwo(static_cast<int64_t>(records.size() / references))) {
    return absl::InternalError(absl::StrCat("'", block.name, "' has a gradient of ", records.size(),
                                            " parts for ", references, " references"));
  }
  BlockGradient gradient;
  for (const int record : records) {
    HARMONY_ASSIGN_OR_RETURN(const command::ObjectView view, segment.ReadRecord(record));
    if (view.state != command::ObjectState::kClean || view.version != version ||
        view.size != block.gradient_bytes) {
      return absl::FailedPreconditionError(absl::StrCat(
          "gradient of '", block.name, "' in record ", record, " is not committed for version ",
          version, " (state ", static_cast<int>(view.state), ", version ", view.version, ", ",
          view.size.count(), " bytes of ", block.gradient_bytes.count(), ")"));
    }
    gradient.push_back(segment.Arena(view.offset));
  }
  return gradient;
}

absl::Status UpdateObject(ipc::Segment& segment, const model::ModelSpec& model,
                          const command::ObjectTableLayout& layout,
                          const OptimizerSettings& settings, const ProtectedUpdate& update,
                          ThreadPool& pool, Isa isa) {
  return BlockUpdate(segment, model, layout, settings, update).Run(pool, isa);
}

}  // namespace harmony::worker
