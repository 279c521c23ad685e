#include "common/command/objects.h"

#include "absl/strings/str_cat.h"

namespace harmony::command {
namespace {

// The order of the kinds in the table, with the number of records of each.
struct KindRange {
  ObjectKind kind;
  int indices;       // values of `index`
  int microbatches;  // values of `microbatch`
  int count() const { return indices * microbatches; }
};

template <typename Fn>
void ForEachKind(const ObjectTableLayout& layout, Fn&& fn) {
  const int blocks = layout.num_blocks(), references = layout.num_references();
  const int boundaries = layout.num_boundaries(), microbatches = layout.num_microbatches();
  const int replicas = layout.replicas();
  const KindRange ranges[] = {{ObjectKind::kParameter, blocks, 1},
                              {ObjectKind::kMoment1, blocks, 1},
                              {ObjectKind::kMoment2, blocks, 1},
                              {ObjectKind::kGradient, references, replicas},
                              {ObjectKind::kLoss, 1, replicas},
                              {ObjectKind::kBatch, 2, 1},
                              {ObjectKind::kStepScalars, 2, 1},
                              {ObjectKind::kNorm, blocks, 1},
                              {ObjectKind::kStash, boundaries, microbatches},
                              {ObjectKind::kBoundaryGradient, boundaries, microbatches}};
  int start = 0;
  for (const KindRange& range : ranges) {
    if (!fn(range, start)) return;
    start += range.count();
  }
}

}  // namespace

std::string DebugString(const ObjectKey& key) {
  static constexpr const char* kNames[] = {
      "parameter",         "moment1", "moment2", "gradient",     "stash",
      "boundary_gradient", "loss",    "batch",   "step_scalars", "norm"};
  std::string text = absl::StrCat(kNames[static_cast<int>(key.kind)], "(", key.index);
  if (key.kind == ObjectKind::kStash || key.kind == ObjectKind::kBoundaryGradient) {
    absl::StrAppend(&text, ", microbatch ", key.microbatch);
  } else if (key.microbatch > 0) {
    absl::StrAppend(&text, ", part ", key.microbatch);
  }
  return text + ")";
}

ObjectTableLayout::ObjectTableLayout(const model::ModelSpec& model, int num_microbatches,
                                     int replicas)
    : num_blocks_(static_cast<int>(model.blocks.size())),
      num_references_(static_cast<int>(model.references.size())),
      num_boundaries_(model.num_layers()),
      num_microbatches_(num_microbatches),
      replicas_(replicas),
      size_(0) {
  ForEachKind(*this, [&](const KindRange& range, int start) {
    size_ = start + range.count();
    return true;
  });
}

int ObjectTableLayout::IndexOf(const ObjectKey& key) const {
  int result = -1;
  ForEachKind(*this, [&](const KindRange& range, int start) {
    if (range.kind != key.kind) return true;
    result = start + key.index * range.microbatches + key.microbatch;
    return false;
  });
  return result;
}

ObjectKey ObjectTableLayout::KeyOf(int index) const {
  ObjectKey key;
  ForEachKind(*this, [&](const KindRange& range, int start) {
    if (index >= start + range.count()) return true;
    key = {range.kind, (index - start) / range.microbatches, (index - start) % range.microbatches};
    return false;
  });
  return key;
}

namespace {

Bytes WeightBytes(const model::ParamBlock& block) { return block.weight_bytes; }
Bytes MomentBytes(const model::ParamBlock& block) { return block.moment_bytes; }
Bytes MasterBytes(const model::ParamBlock& block) { return block.master_bytes(); }

// What the first `blocks` blocks take in one form, each from a slot boundary on.
template <typename FormBytes>
Bytes RoomOf(const model::ModelSpec& model, FormBytes form, size_t blocks) {
  Bytes total;
  for (size_t i = 0; i < blocks; ++i) {
    total += form(model.blocks[i]).AlignUp(kSlotAlignment);
  }
  return total;
}
template <typename FormBytes>
Bytes RoomOf(const model::ModelSpec& model, FormBytes form) {
  return RoomOf(model, form, model.blocks.size());
}

// Of parameters, and moments behind them.
Bytes RoomOfMoments(const model::ModelSpec& model, int moments) {
  return RoomOf(model, WeightBytes) + RoomOf(model, MomentBytes) * moments;
}

}  // namespace

Bytes PersistentBytes(const model::ModelSpec& model, int moments) {
  return RoomOfMoments(model, moments) + RoomOf(model, MasterBytes);
}

Bytes PersistentOffset(const model::ModelSpec& model, const ObjectKey& key) {
  const auto blocks = static_cast<size_t>(key.index);
  if (key.kind == ObjectKind::kParameter) return RoomOf(model, WeightBytes, blocks);
  const int moments = key.kind == ObjectKind::kMoment1 ? 0 : 1;  // before this one
  return RoomOfMoments(model, moments) + RoomOf(model, MomentBytes, blocks);
}

Bytes MasterOffset(const model::ModelSpec& model, int moments, int block) {
  return RoomOfMoments(model, moments) + RoomOf(model, MasterBytes, static_cast<size_t>(block));
}

std::vector<Bytes> ParameterOffsets(const model::ModelSpec& model) {
  std::vector<Bytes> offsets;
  Bytes next;
  for (const model::ParamBlock& block : model.blocks) {
    offsets.push_back(next);
    next += block.weight_bytes.AlignUp(kSlotAlignment);
  }
  return offsets;
}

}  // namespace harmony::command
