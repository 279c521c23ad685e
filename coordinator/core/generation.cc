#include "coordinator/core/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony {

Generation::Generation(JobContext& job, Frontier frontier, absl::Span<const ObjectView> records)
    : job_(job),
      model_(job.model),
      plan_(job.plan),
      frontier_(std::move(frontier)),
      lane_table_(static_cast<int>(job.plan.devices.size())),
      graph_(lane_table_.size()),
      records_(job.table, frontier_.initialized() ? records : absl::Span<const ObjectView>()),
      ring_(job.layout.ring_begin(), job.layout.ring_bytes()),
      builder_(job.model, job.plan, job.layout, job.kept, graph_, memory_),
      writer_(job.model, job.plan, job.layout, job.kept, job.table, graph_, memory_, records_),
      lanes_(lane_table_.size()),
      links_(LinksOfLanes(plan_)),
      link_clocks_(lane_table_.size()),
      grants_(job.plan.backward_groups.size()) {
  for (size_t d = 0; d < plan_.devices.size(); ++d) {
    memory_.emplace_back(plan_.devices[d].resident - job.kept.bytes(static_cast<int>(d)));
  }
}

// ---- Building ----

absl::Status Generation::Begin() {
  completed_steps_ = next_step_ = frontier_.step();
  if (!frontier_.initialized()) {
    builder_.AddInitialize(next_step_);
    steps_.push_back({next_step_, 1, 0});
  }
  if (next_step_ >= job_.end_step && job_.saved_version < next_step_) {
    builder_.AddCheckpoint(next_step_ - 1);
    checkpoints_.push_back(next_step_ - 1);
  }
  return AppendSteps();
}

bool Generation::CheckpointDue(int64_t step) const {
  if (step + 1 <= job_.saved_version) return false;
  if (std::find(checkpoints_.begin(), checkpoints_.end(), step) != checkpoints_.end()) return false;
  const int64_t every = job_.options.save_steps;
  return step + 1 == job_.end_step || (every > 0 && (step + 1) % every == 0);
}

Generation::StepCount* Generation::CountOf(int64_t step) {
  for (StepCount& count : steps_) {
    if (count.step == step) return &count;
  }
  return nullptr;
}

// Two steps are being issued at a time.
absl::Status Generation::AppendSteps() {
  while (next_step_ < job_.end_step) {
    const auto unissued = std::find_if(steps_.begin(), steps_.end(),
                                       [](const StepCount& c) { return c.nodes_left > 0; });
    if (unissued != steps_.end() && next_step_ > unissued->step + 1) break;
    HARMONY_RETURN_IF_ERROR(AppendStep(next_step_++));
  }
  return absl::OkStatus();
}

absl::Status Generation::AppendStep(int64_t step) {
  graph_.ForgetBefore(completed_steps_ - 1);
  HARMONY_ASSIGN_OR_RETURN(StepWork work,
                           DeriveStepWork(model_, plan_, job_.layout, frontier_, step));
  const bool first = step == frontier_.step();
  if (first) PinGradients(work);
  if (work.resumed || (first && job_.resumed)) resumed_steps_.push_back(step);
  // Updates wait for a checkpoint of the state before them; so a state that is half updated has it.
  bool untouched = true;
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    untouched = untouched && !frontier_.Touched(static_cast<int>(block), step);
  }
  const bool save = CheckpointDue(step - 1) && step > 0 && untouched;
  if (save) checkpoints_.push_back(step - 1);
  if (CountOf(step) == nullptr) steps_.push_back({step, 0, 0});
  std::vector<size_t> before(graph_.num_lanes());
  for (int lane = 0; lane < graph_.num_lanes(); ++lane) before[lane] = graph_.lane(lane).size();
  HARMONY_RETURN_IF_ERROR(builder_.AddStep(work, save));
  if (step + 1 == job_.end_step && CheckpointDue(step)) {
    builder_.AddCheckpoint(step);
    checkpoints_.push_back(step);
  }
  StepCount& count = *CountOf(step);
  for (int lane = 0; lane < graph_.num_lanes(); ++lane) {
    for (size_t i = before[lane]; i < graph_.lane(lane).size(); ++i) {
      const Node& node = graph_.node(graph_.lane(lane)[i]);
      if (StepCount* of = CountOf(node.step)) ++of->nodes_left;
      if (node.kind == NodeKind::kUpdate) ++count.updates_left;
    }
  }
  if (job_.layout.ring_bytes().count() > 0) RequestRing(work);
  for (DeviceMemory& memory : memory_) memory.Admit();
  ++changes_;
  return absl::OkStatus();
}

// Blocks whose gradients a group holds in the ring, and whose update is to come.
int Generation::RingBlocks(int backward_group, const std::vector<bool>& updates) const {
  int count = 0;
  for (int block : BlocksOf(model_, plan_.backward_groups[backward_group].layers, false)) {
    count += model_.blocks[block].uses.size() == 1 && updates[block] ? 1 : 0;
  }
  return count;
}

Bytes Generation::RingBytes(absl::Span<const int> uses) const {
  Bytes sum;
  for (int use : uses) {
    if (job_.layout.UseHasOwnGradientSlot(use)) continue;
    sum += model_.blocks[model_.uses[use].block].size().AlignUp(kSlotAlignment);
  }
  return sum;
}

void Generation::RequestRing(const StepWork& work) {
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    RingRequest request{work.step, g, {}};
    for (int64_t visit : builder_.backward_visits()[g]) {
      if (visit >= 0) request.visits.push_back(visit);
    }
    const bool pinned = work.step == frontier_.step() && grants_[g].held;
    if (request.visits.empty() || pinned || RingBlocks(g, work.update) == 0) continue;
    ring_queue_.push_back(std::move(request));
  }
}

// Where an earlier generation put a group's gradients of this step, if any is still there.
std::optional<Bytes> Generation::PieceInUse(int backward_group, int64_t step) const {
  const std::vector<int> uses = UsesOf(model_, plan_.backward_groups[backward_group].layers);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (job_.layout.UseHasOwnGradientSlot(uses[i])) continue;
    for (int replica = 0; replica < plan_.replicas; ++replica) {
      const ObjectKey key{ObjectKind::kGradient, uses[i], replica};
      if (!frontier_.Holds(key, step + 1)) continue;
      return frontier_.OffsetOf(key) - RingBytes(uses) * replica -
             RingBytes(absl::MakeConstSpan(uses).first(i));
    }
  }
  return std::nullopt;
}

// Gradients that an earlier generation committed and whose updates are still to come keep their
// places, and those that are missing beside them take theirs in the same piece: it was the group's
// until the last of its updates was issued, and as long as one of its gradients is there it stays.
void Generation::PinGradients(const StepWork& work) {
  if (job_.layout.ring_bytes().count() == 0 || !frontier_.initialized()) return;
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    const int updates = RingBlocks(g, work.update);
    const std::optional<Bytes> begin = PieceInUse(g, work.step);
    if (updates == 0 || !begin) continue;
    const Bytes bytes = RingBytes(UsesOf(model_, plan_.backward_groups[g].layers));
    ring_.Pin(*begin, *begin + bytes * plan_.replicas);
    grants_[g].held = true;
    grants_[g].begin = *begin;
    grants_[g].updates_left = updates;
  }
}

// ---- Progress ----

void Generation::OnLaneProgress(int index, uint64_t value) {
  LaneState& lane = lanes_[index];
  value = std::min(value, lane.issued);
  while (lane.completed < value) {
    const Command& command = lane.outstanding.front();
    const auto* host = std::get_if<HostTask>(&command.body);
    if (host != nullptr && host->kind == HostTaskKind::kCheckpoint) {
      job_.saved_version = std::max(job_.saved_version, command.header.step + 1);
    }
    lane.outstanding.pop_front();
    ++lane.completed;
  }
  FinishSteps();
}

void Generation::FinishSteps() {
  const LaneState& host = lanes_[lane_table_.IndexOf({LaneKind::kHostCompute, 0})];
  while (!finishing_.empty() && finishing_.front().second <= host.completed) {
    completed_steps_ = finishing_.front().first + 1;
    finishing_.pop_front();
    while (!steps_.empty() && steps_.front().step < completed_steps_) steps_.pop_front();
  }
}

void Generation::Stop() {
  const int64_t current = std::max(completed_steps_, frontier_.step());
  const int64_t end = last_host_step_ > current ? current + 2 : current + 1;
  if (end >= job_.end_step) return;
  job_.end_step = end;
  if (next_step_ <= end - 1) return;  // AppendStep adds the checkpoint
  graph_.CancelFrom(end);
  checkpoints_.erase(std::remove_if(checkpoints_.begin(), checkpoints_.end(),
                                    [&](int64_t step) { return step >= end; }),
                     checkpoints_.end());
  for (LaneState& lane : lanes_) {
    lane.ready = false;
    lane.blocked_on = kNoNode;
  }
  held_back_ = -1;
  ++changes_;
  ring_queue_.erase(std::remove_if(ring_queue_.begin(), ring_queue_.end(),
                                   [&](const RingRequest& request) { return request.step >= end; }),
                    ring_queue_.end());
  while (!steps_.empty() && steps_.back().step >= end) steps_.pop_back();
  next_step_ = std::max(next_step_, end);
  if (CheckpointDue(end - 1)) {
    builder_.AddCheckpoint(end - 1);
    checkpoints_.push_back(end - 1);
  }
}

bool Generation::done() const {
  if (completed_steps_ < job_.end_step || !graph_.empty()) return false;
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const LaneState& lane) { return lane.completed == lane.issued; });
}

const Command* Generation::Find(int lane, uint64_t value) const {
  const LaneState& state = lanes_[lane];
  if (value <= state.completed || value > state.issued) return nullptr;
  return &state.outstanding[value - state.completed - 1];
}

}  // namespace harmony
