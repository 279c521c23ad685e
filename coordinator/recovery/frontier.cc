#include "coordinator/recovery/frontier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace harmony::recovery {
namespace {

// Nothing of the kind exists before all parameters and moments do.
bool ShowsTraining(command::ObjectKind kind, const command::ObjectView& record,
                   int64_t first_step) {
  if (record.state == command::ObjectState::kUpdating) return true;
  if (record.state == command::ObjectState::kFree) return false;
  if (kind == command::ObjectKind::kGradient || kind == command::ObjectKind::kLoss) return true;
  return kind <= command::ObjectKind::kMoment2 && static_cast<int64_t>(record.version) > first_step;
}

}  // namespace

absl::StatusOr<Frontier> Frontier::FromRecords(const command::ObjectTableLayout& table,
                                               absl::Span<const command::ObjectView> records,
                                               int64_t first_step) {
  Frontier frontier(table);
  frontier.clean_version_.assign(table.size(), -1);
  frontier.offset_.assign(table.size(), Bytes(0));
  frontier.block_version_.assign(table.num_blocks(), first_step);
  frontier.updating_.assign(table.num_blocks(), false);
  frontier.step_ = first_step;
  if (records.empty()) return frontier;
  if (static_cast<int>(records.size()) != table.size()) {
    return absl::InternalError(absl::StrCat("the object table has ", records.size(),
                                            " records, this job needs ", table.size()));
  }
  int missing = -1, trained = -1;  // records of what does not exist, and of what training made
  for (int i = 0; i < table.size(); ++i) {
    const command::ObjectView& record = records[i];
    frontier.offset_[i] = record.offset;
    const int64_t version = static_cast<int64_t>(record.version);
    if (record.state == command::ObjectState::kClean) frontier.clean_version_[i] = version;
    const command::ObjectKind kind = table.KeyOf(i).kind;
    if (ShowsTraining(kind, record, first_step)) trained = i;
    if (kind > command::ObjectKind::kMoment2) continue;
    if (record.state == command::ObjectState::kFree) missing = i;
    if (kind != command::ObjectKind::kParameter) continue;
    const bool updating = record.state == command::ObjectState::kUpdating;
    frontier.block_version_[table.KeyOf(i).index] = updating ? version - 1 : version;
    frontier.updating_[table.KeyOf(i).index] = updating;
  }
  if (missing >= 0 && trained >= 0) {
    return absl::DataLossError(absl::StrCat(
        "the record of ", command::DebugString(table.KeyOf(missing)), " is free while ",
        command::DebugString(table.KeyOf(trained)), " has version ", records[trained].version,
        ": the segment is damaged, and what was trained since the last checkpoint is lost"));
  }
  if (missing >= 0) {  // a crash during initialisation: it starts over
    std::fill(frontier.block_version_.begin(), frontier.block_version_.end(), first_step);
    std::fill(frontier.updating_.begin(), frontier.updating_.end(), false);
    std::fill(frontier.clean_version_.begin(), frontier.clean_version_.end(), -1);
    return frontier;
  }
  frontier.initialized_ = true;
  const auto [low, high] =
      std::minmax_element(frontier.block_version_.begin(), frontier.block_version_.end());
  frontier.step_ = *low;
  if (*high > *low + 1) {
    return absl::InternalError(absl::StrCat(
        command::DebugString({command::ObjectKind::kParameter,
                              static_cast<int32_t>(high - frontier.block_version_.begin()), 0}),
        " has version ", *high, " while another parameter has ", *low));
  }
  return frontier;
}

namespace {

class Derivation {
 public:
  Derivation(const model::ModelSpec& model, const plan::Plan& plan, const plan::ArenaLayout& layout,
             const Frontier& frontier, int64_t step)
      : model_(model), plan_(plan), layout_(layout), frontier_(frontier) {
    work_.step = step;
    work_.shards.resize(plan.num_shards());
    for (ShardWork& shard : work_.shards) {
      shard.forward.resize(plan.forward_groups.size());
      shard.forward_last.assign(plan.forward_groups.size(), -1);
      shard.backward.assign(plan.backward_groups.size(), false);
    }
    work_.update.assign(model.blocks.size(), false);
  }

  absl::StatusOr<StepWork> Run() {
    for (size_t block = 0; block < model_.blocks.size(); ++block) {
      work_.update[block] = frontier_.block_version(static_cast<int>(block)) <= work_.step;
      work_.resumed |= !work_.update[block];
    }
    const bool deferred = plan_.update != job::UpdateMode::kEager;
    work_.scalars =
        Any(work_.update) && (deferred || !Holds(command::ObjectKind::kStepScalars, Parity()));
    if (Any(work_.update)) {
      for (int shard = 0; shard < plan_.num_shards(); ++shard) {
        Backward(shard);
        Forward(shard);
      }
    }
    work_.load_batch = NeedsTokens() && !Holds(command::ObjectKind::kBatch, Parity());
    for (const ShardWork& shard : work_.shards) {
      if (absl::Status status = CheckWeights(shard); !status.ok()) return status;
    }
    return std::move(work_);
  }

 private:
  static bool Any(const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), true) != flags.end();
  }
  int Parity() const { return static_cast<int>(work_.step & 1); }
  bool Holds(command::ObjectKind kind, int index, int microbatch = 0) const {
    return frontier_.Holds({kind, index, microbatch}, work_.step + 1);
  }
  // Of a range of microbatches or parts.
  bool HoldsAll(command::ObjectKind kind, int index, int begin, int count) const {
    for (int m = begin; m < begin + count; ++m) {
      if (!Holds(kind, index, m)) return false;
    }
    return true;
  }
  bool HoldsParts(command::ObjectKind kind, int index, const plan::LayerGroup& group,
                  int shard) const {
    const int count = group.gradient_parts / plan_.num_shards();
    return HoldsAll(kind, index, shard * count, count);
  }

  bool GradientsDone(const plan::LayerGroup& group, int shard) const {
    for (int reference : plan::ReferencesOf(model_, group.layers)) {
      if (work_.update[model_.references[reference].block] &&
          !HoldsParts(command::ObjectKind::kGradient, reference, group, shard)) {
        return false;
      }
    }
    return true;
  }

  void Backward(int shard) {
    std::vector<bool>& backward = work_.shards[shard].backward;
    const int groups = static_cast<int>(plan_.backward_groups.size());
    const int fused = groups - 1, count = plan_.shard_microbatches();
    for (int g = 0; g < groups; ++g) backward[g] = !GradientsDone(plan_.backward_groups[g], shard);
    if (work_.scalars &&
        !HoldsParts(command::ObjectKind::kLoss, 0, plan_.backward_groups[fused], shard)) {
      backward[fused] = true;
    }
    // What runs needs the gradient of its output: committed, or computed once more from above.
    for (int g = 0; g < fused; ++g) {
      const int boundary = plan_.backward_groups[g + 1].layers.first;
      if (backward[g] &&
          !HoldsAll(command::ObjectKind::kBoundaryGradient, boundary, shard * count, count)) {
        backward[g + 1] = true;
      }
    }
    for (size_t g = 0; g < backward.size(); ++g) work_.resumed |= !backward[g];
  }

  // A group's forward runs as far as it is needed: to its end for the group above, or to the last
  // stash that is wanted. So it never needs weights of groups above an unfinished one.
  void Forward(int shard) {
    ShardWork& work = work_.shards[shard];
    const int groups = static_cast<int>(plan_.forward_groups.size());
    std::vector<bool> wanted(model_.num_layers() + 1, false);  // stashes that backward will read
    std::vector<bool> kept(model_.num_layers() + 1, false);    // on a device: forgotten
    for (const plan::StashSpec& stash : plan::StashesOf(plan_)) {
      const bool fused = stash.group + 1 == static_cast<int>(plan_.backward_groups.size());
      wanted[stash.boundary] = !fused && work.backward[stash.group];
      kept[stash.boundary] = stash.kept;
    }
    const int tasks = plan_.shard_microbatches() / plan_.microbatches_per_forward_task;
    for (int m = shard * tasks; m < (shard + 1) * tasks; ++m) {
      bool consumer = work.backward.back();
      for (int f = groups - 1; f >= 0; --f) {
        const model::LayerRange layers = plan_.forward_groups[f].layers;
        int last = consumer && !Stashed(layers.last + 1, m) ? layers.last : -1;
        const int keeper = plan::ActivationKeeperOf(plan_, plan_.forward_groups[f]);
        if (keeper >= 0 && work.backward[keeper]) last = layers.last;  // forgotten, too
        for (int b = layers.first + 1; b <= layers.last + 1; ++b) {
          if (!wanted[b]) continue;
          const bool missing = kept[b] || !Stashed(b, m);
          if (missing) last = std::max(last, b - 1);
          work_.resumed |= !missing;
        }
        consumer = last >= 0;
        if (!consumer) continue;
        work.forward[f].push_back(m);
        work.forward_last[f] = std::max(work.forward_last[f], last);
      }
    }
  }

  bool Stashed(int boundary, int m) const {
    return layout_.HasStash(boundary) && Holds(command::ObjectKind::kStash, boundary, m);
  }

  bool NeedsTokens() const {
    return std::any_of(work_.shards.begin(), work_.shards.end(), [](const ShardWork& shard) {
      if (shard.backward.front() || shard.backward.back()) return true;
      return !shard.forward.empty() && !shard.forward.front().empty();
    });
  }

  absl::Status CheckWeights(const ShardWork& work) const {
    for (size_t g = 0; g < plan_.backward_groups.size(); ++g) {
      if (!work.backward[g]) continue;
      for (int block : plan::BlocksOf(model_, plan_.backward_groups[g].layers, false)) {
        if (frontier_.Touched(block, work_.step)) return Lost(block);
      }
    }
    for (size_t f = 0; f < plan_.forward_groups.size(); ++f) {
      if (work.forward[f].empty()) continue;
      const model::LayerRange layers{plan_.forward_groups[f].layers.first, work.forward_last[f]};
      for (int block : plan::BlocksOf(model_, layers, false)) {
        if (frontier_.Touched(block, work_.step)) return Lost(block);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Lost(int block) const {
    return absl::InternalError(
        absl::StrCat("step ", work_.step, " has to run again with ",
                     command::DebugString({command::ObjectKind::kParameter, block, 0}),
                     ", which is updated already"));
  }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const plan::ArenaLayout& layout_;
  const Frontier& frontier_;
  StepWork work_;
};

}  // namespace

absl::StatusOr<StepWork> DeriveStepWork(const model::ModelSpec& model, const plan::Plan& plan,
                                        const plan::ArenaLayout& layout, const Frontier& frontier,
                                        int64_t step) {
  return Derivation(model, plan, layout, frontier, step).Run();
}

}  // namespace harmony::recovery
