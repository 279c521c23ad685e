#include "common/command/objects.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace harmony::command {
namespace {

// Places of records are fixed by this order: a new kind comes last.
constexpr ObjectKind kTableOrder[] = {ObjectKind::kParameter,   ObjectKind::kMoment1,
                                      ObjectKind::kMoment2,     ObjectKind::kGradient,
                                      ObjectKind::kLoss,        ObjectKind::kBatch,
                                      ObjectKind::kStepScalars, ObjectKind::kNorm,
                                      ObjectKind::kStash,       ObjectKind::kBoundaryGradient};
static_assert(std::size(kTableOrder) == kObjectKinds);

int HowMany(ObjectCount count, const ObjectTableLayout& layout) {
  switch (count) {
    case ObjectCount::kOne:
      return 1;
    case ObjectCount::kBlocks:
      return layout.num_blocks();
    case ObjectCount::kReferences:
      return layout.num_references();
    case ObjectCount::kBoundaries:
      return layout.num_boundaries();
    case ObjectCount::kTwoSteps:
      return 2;
    case ObjectCount::kParts:
      return layout.replicas();
    case ObjectCount::kForwardTasks:
    case ObjectCount::kMicrobatches:
      return layout.num_microbatches();
  }
  return 0;
}

// A kind's records: of each index, of all its numbers, one after the other.
struct KindRange {
  ObjectKind kind;
  int indices, numbers;
  int count() const { return indices * numbers; }
};

template <typename Fn>
void ForEachKind(const ObjectTableLayout& layout, Fn&& fn) {
  int start = 0;
  for (const ObjectKind kind : kTableOrder) {
    const ObjectTraits traits = TraitsOf(kind);
    const KindRange range{kind, HowMany(traits.index, layout), HowMany(traits.number, layout)};
    if (!fn(range, start)) return;
    start += range.count();
  }
}

std::string NumberText(const ObjectKey& key) {
  switch (TraitsOf(key.kind).number) {
    case ObjectCount::kForwardTasks:
      return absl::StrCat(", forward task ", key.number);
    case ObjectCount::kMicrobatches:
      return absl::StrCat(", microbatch ", key.number);
    case ObjectCount::kParts:
      return key.number > 0 ? absl::StrCat(", part ", key.number) : "";
    case ObjectCount::kOne:
    case ObjectCount::kBlocks:
    case ObjectCount::kReferences:
    case ObjectCount::kBoundaries:
    case ObjectCount::kTwoSteps:
      return "";
  }
  return "";
}

}  // namespace

std::string DebugString(const ObjectKey& key) {
  return absl::StrCat(TraitsOf(key.kind).name, "(", key.index, NumberText(key), ")");
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
    result = start + key.index * range.numbers + key.number;
    return false;
  });
  return result;
}

ObjectKey ObjectTableLayout::KeyOf(int index) const {
  ObjectKey key;
  ForEachKind(*this, [&](const KindRange& range, int start) {
    if (index >= start + range.count()) return true;
    key = {range.kind, (index - start) / range.numbers, (index - start) % range.numbers};
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
