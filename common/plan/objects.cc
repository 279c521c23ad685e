#include "common/plan/objects.h"

#include "absl/strings/str_cat.h"

namespace harmony {
namespace {

// The order of the kinds in the table, with the number of records of each.
struct Span {
  ObjectKind kind;
  int indices;       // values of `index`
  int microbatches;  // values of `microbatch`
  int count() const { return indices * microbatches; }
};

template <typename Fn>
void ForEachSpan(const ObjectTableLayout& layout, Fn&& fn) {
  const int blocks = layout.num_blocks(), uses = layout.num_uses();
  const int boundaries = layout.num_boundaries(), microbatches = layout.num_microbatches();
  const int replicas = layout.replicas();
  const Span spans[] = {{ObjectKind::kParameter, blocks, 1},
                        {ObjectKind::kMoment1, blocks, 1},
                        {ObjectKind::kMoment2, blocks, 1},
                        {ObjectKind::kGradient, uses, replicas},
                        {ObjectKind::kLoss, 1, replicas},
                        {ObjectKind::kBatch, 2, 1},
                        {ObjectKind::kStepScalars, 2, 1},
                        {ObjectKind::kNorm, blocks, 1},
                        {ObjectKind::kStash, boundaries, microbatches},
                        {ObjectKind::kBoundaryGradient, boundaries, microbatches}};
  int start = 0;
  for (const Span& span : spans) {
    if (!fn(span, start)) return;
    start += span.count();
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
    absl::StrAppend(&text, ", replica ", key.microbatch);
  }
  return text + ")";
}

ObjectTableLayout::ObjectTableLayout(const ModelSpec& model, int num_microbatches, int replicas)
    : num_blocks_(static_cast<int>(model.blocks.size())),
      num_uses_(static_cast<int>(model.uses.size())),
      num_boundaries_(model.num_layers()),
      num_microbatches_(num_microbatches),
      replicas_(replicas),
      size_(0) {
  ForEachSpan(*this, [&](const Span& span, int start) {
    size_ = start + span.count();
    return true;
  });
}

int ObjectTableLayout::IndexOf(const ObjectKey& key) const {
  int result = -1;
  ForEachSpan(*this, [&](const Span& span, int start) {
    if (span.kind != key.kind) return true;
    result = start + key.index * span.microbatches + key.microbatch;
    return false;
  });
  return result;
}

ObjectKey ObjectTableLayout::KeyOf(int index) const {
  ObjectKey key;
  ForEachSpan(*this, [&](const Span& span, int start) {
    if (index >= start + span.count()) return true;
    key = {span.kind, (index - start) / span.microbatches, (index - start) % span.microbatches};
    return false;
  });
  return key;
}

namespace {

// What the first `blocks` blocks take in one form, each from a slot boundary on.
Bytes RoomOf(const ModelSpec& model, Bytes ParamBlock::*form, size_t blocks) {
  Bytes total;
  for (size_t i = 0; i < blocks; ++i) total += (model.blocks[i].*form).AlignUp(kSlotAlignment);
  return total;
}
Bytes RoomOf(const ModelSpec& model, Bytes ParamBlock::*form) {
  return RoomOf(model, form, model.blocks.size());
}

}  // namespace

Bytes PersistentBytes(const ModelSpec& model, int moments) {
  return RoomOf(model, &ParamBlock::weight_bytes) +
         RoomOf(model, &ParamBlock::moment_bytes) * moments;
}

Bytes PersistentOffset(const ModelSpec& model, const ObjectKey& key) {
  const auto blocks = static_cast<size_t>(key.index);
  if (key.kind == ObjectKind::kParameter) return RoomOf(model, &ParamBlock::weight_bytes, blocks);
  const int moments = key.kind == ObjectKind::kMoment1 ? 0 : 1;  // before this one
  return RoomOf(model, &ParamBlock::weight_bytes) +
         RoomOf(model, &ParamBlock::moment_bytes) * moments +
         RoomOf(model, &ParamBlock::moment_bytes, blocks);
}

std::vector<Bytes> ParameterOffsets(const ModelSpec& model) {
  std::vector<Bytes> offsets;
  Bytes next;
  for (const ParamBlock& block : model.blocks) {
    offsets.push_back(next);
    next += block.weight_bytes.AlignUp(kSlotAlignment);
  }
  return offsets;
}

}  // namespace harmony
