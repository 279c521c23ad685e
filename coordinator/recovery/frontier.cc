#include "coordinator/recovery/frontier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

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
  frontier.whole_ = true;
  for (int i = 0; i < table.size(); ++i) {
    if (table.KeyOf(i).kind > command::ObjectKind::kMoment2) continue;
    // Moments that the optimizer does not have stay what they were when the job began.
    const int64_t version = frontier.clean_version_[i];
    frontier.whole_ &= version >= 0 && version <= frontier.step_;
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
    for (const plan::LayerGroup& group : plan.forward_groups) {
      work_.forward.emplace_back(group.devices.num_shards());
    }
    for (const plan::LayerGroup& group : plan.backward_groups) {
      work_.backward.emplace_back(group.devices.num_shards(), false);
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
      Backward();
      Forward();
    }
    work_.load_batch = NeedsTokens() && !Holds(command::ObjectKind::kBatch, Parity());
    HARMONY_RETURN_IF_ERROR(CheckWeights());
    return std::move(work_);
  }

 private:
  static bool Any(const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), true) != flags.end();
  }
  int Parity() const { return static_cast<int>(work_.step & 1); }
  bool Holds(command::ObjectKind kind, int index, int number = 0) const {
    return frontier_.Holds({kind, index, number}, work_.step + 1);
  }
  // Of a range of microbatches or parts.
  bool HoldsAll(command::ObjectKind kind, int index, int begin, int count) const {
    for (int m = begin; m < begin + count; ++m) {
      if (!Holds(kind, index, m)) return false;
    }
    return true;
  }
  // Of the parts, of so many microbatches, that the shard makes or has a share in.
  bool HoldsParts(command::ObjectKind kind, int index, const plan::Shard& shard, int part) const {
    return HoldsAll(kind, index, shard.first / part, std::max(shard.count / part, 1));
  }

  bool GradientsDone(const plan::LayerGroup& group, const plan::Shard& shard) const {
    for (int reference : plan::ReferencesOf(model_, group.layers)) {
      if (work_.update[model_.references[reference].block] &&
          !HoldsParts(command::ObjectKind::kGradient, reference, shard,
                      plan_.part_microbatches(group))) {
        return false;
      }
    }
    return true;
  }

  void Backward() {
    const std::vector<plan::LayerGroup>& groups = plan_.backward_groups;
    const size_t fused = groups.size() - 1;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < work_.backward[g].size(); ++i) {
        const plan::Shard shard = plan::ShardOf(plan_, groups[g], static_cast<int>(i));
        const bool lacks_losses =
            g == fused && work_.scalars &&
            !HoldsParts(command::ObjectKind::kLoss, 0, shard, plan_.loss_microbatches());
        if (lacks_losses || !GradientsDone(groups[g], shard)) RunPartWith(g, shard.first);
      }
    }
    // What runs needs the gradient of its output: committed, or computed once more from above. What
    // runs above may write over one that is committed, so until nothing more is to run.
    for (bool more = true; more;) {
      more = false;
      for (size_t g = 0; g < fused; ++g) {
        for (size_t i = 0; i < work_.backward[g].size(); ++i) {
          if (work_.backward[g][i]) more |= NeedOutputGradient(g, static_cast<int>(i));
        }
      }
    }
    for (const std::vector<bool>& shards : work_.backward) {
      for (bool runs : shards) work_.resumed |= !runs;
    }
  }

  // True when something runs that did not before.
  bool NeedOutputGradient(size_t group, int number) {
    const plan::Shard shard = plan::ShardOf(plan_, plan_.backward_groups[group], number);
    const plan::LayerGroup& above = plan_.backward_groups[group + 1];
    bool more = false;
    for (int m = shard.first; m < shard.end(); ++m) {
      if (Holds(command::ObjectKind::kBoundaryGradient, above.layers.first, m) &&
          !IsWrittenOver(static_cast<int>(group) + 1, m)) {
        continue;
      }
      more |= RunPartWith(group + 1, m);
    }
    return more;
  }

  // The shard that has the microbatch, and those that add up a part with it. True when one of them
  // did not run before.
  bool RunPartWith(size_t group, int microbatch) {
    const plan::LayerGroup& of = plan_.backward_groups[group];
    const int part = plan_.part_microbatches(of), first = microbatch / part * part;
    const size_t last = ShardWith(of, first + part - 1);
    bool more = false;
    for (size_t number = ShardWith(of, first); number <= last; ++number) {
      more |= !work_.backward[group][number];
      work_.backward[group][number] = true;
    }
    return more;
  }

  // The place in the arena of the gradient of a group's input is that of a group above, too, which
  // runs. With eager updates it is not: all gradients are committed, so that none runs whose
  // gradient another one has taken the place of.
  bool IsWrittenOver(int group, int microbatch) const {
    if (plan_.update == job::UpdateMode::kEager) return false;
    const int groups = static_cast<int>(plan_.backward_groups.size());
    for (int above = group + plan_.banks(); above < groups; above += plan_.banks()) {
      if (BackwardRuns(above, microbatch)) return true;
    }
    return false;
  }

  size_t ShardWith(const plan::LayerGroup& group, int microbatch) const {
    return static_cast<size_t>(plan::ShardWith(plan_, group, microbatch));
  }
  bool BackwardRuns(int group, int microbatch) const {
    return work_.backward[group][ShardWith(plan_.backward_groups[group], microbatch)];
  }

  // A group's forward runs as far as it is needed: to its end for the group above, or to the last
  // stash that is wanted. So it never needs weights of groups above an unfinished one.
  void Forward() {
    const int groups = static_cast<int>(plan_.forward_groups.size());
    const int fused = static_cast<int>(plan_.backward_groups.size()) - 1;
    std::vector<int> reader(model_.num_layers() + 1, -1);    // backward group of a stash
    std::vector<bool> kept(model_.num_layers() + 1, false);  // on a device: forgotten
    for (const plan::StashSpec& stash : plan::StashesOf(plan_)) {
      if (stash.group != fused) reader[stash.boundary] = stash.group;
      kept[stash.boundary] = stash.kept;
    }
    for (int task = 0; task < plan_.num_forwards(); ++task) {
      const int m = task * plan_.microbatches_per_forward_task;
      bool consumer = BackwardRuns(fused, m);
      for (int f = groups - 1; f >= 0; --f) {
        const plan::LayerGroup& group = plan_.forward_groups[f];
        const model::LayerRange layers = group.layers;
        int last = consumer && !Stashed(layers.last + 1, task) ? layers.last : -1;
        const int keeper = plan::ActivationKeeperOf(plan_, group);
        if (keeper >= 0 && BackwardRuns(keeper, m)) last = layers.last;  // forgotten, too
        for (int b = layers.first + 1; b <= layers.last + 1; ++b) {
          if (reader[b] < 0 || !BackwardRuns(reader[b], m)) continue;
          const bool missing = kept[b] || !Stashed(b, task);
          if (missing) last = std::max(last, b - 1);
          work_.resumed |= !missing;
        }
        consumer = last >= 0;
        if (!consumer) continue;
        ForwardWork& work = work_.forward[f][ShardWith(group, m)];
        work.tasks.push_back(task);
        work.last = std::max(work.last, last);
      }
    }
  }

  bool Stashed(int boundary, int m) const {
    return layout_.HasStash(boundary) && Holds(command::ObjectKind::kStash, boundary, m);
  }

  bool NeedsTokens() const {
    if (Any(work_.backward.front()) || Any(work_.backward.back())) return true;
    return !work_.forward.empty() &&
           std::any_of(work_.forward.front().begin(), work_.forward.front().end(),
                       [](const ForwardWork& work) { return !work.tasks.empty(); });
  }

  absl::Status CheckWeights() const {
    for (size_t g = 0; g < plan_.backward_groups.size(); ++g) {
      if (!Any(work_.backward[g])) continue;
      HARMONY_RETURN_IF_ERROR(CheckUntouched(plan_.backward_groups[g].layers));
    }
    for (size_t f = 0; f < plan_.forward_groups.size(); ++f) {
      int last = -1;
      for (const ForwardWork& work : work_.forward[f]) last = std::max(last, work.last);
      if (last < 0) continue;
      HARMONY_RETURN_IF_ERROR(CheckUntouched({plan_.forward_groups[f].layers.first, last}));
    }
    return absl::OkStatus();
  }

  absl::Status CheckUntouched(model::LayerRange layers) const {
    for (int block : plan::BlocksOf(model_, layers, false)) {
      if (frontier_.Touched(block, work_.step)) return Lost(block);
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
