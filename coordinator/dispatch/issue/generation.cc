#include "coordinator/dispatch/issue/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"
#include "coordinator/dispatch/graph/group_executions.h"

namespace harmony::dispatch {
namespace {

std::vector<DeviceMemory> MemoryOfDevices(const plan::Plan& plan, const KeptLayout& kept) {
  std::vector<DeviceMemory> memory;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    memory.emplace_back(plan.devices[d].resident - kept.bytes(static_cast<int>(d)));
  }
  return memory;
}

// Who uses the slot at the consumer before a send; kNoNode: it has not been used.
NodeId SlotUser(const GroupExecution& consumer, const Node& send) {
  if (send.index < consumer.slots) return kNoNode;
  return consumer.positions[static_cast<size_t>(send.index - consumer.slots)].compute;
}

}  // namespace

Generation::Generation(JobContext& job, recovery::Frontier frontier,
                       absl::Span<const command::ObjectView> records)
    : job_(job),
      model_(job.model),
      plan_(job.plan),
      frontier_(std::move(frontier)),
      lane_table_(static_cast<int>(job.plan.devices.size())),
      update_lane_(lane_table_.IndexOf({TraitsOf(NodeKind::kUpdate).lane, 0})),
      queues_(lane_table_),
      graph_(queues_.size()),
      memory_(MemoryOfDevices(job.plan, job.kept)),
      gradient_slots_(job.model, job.plan, job.layout, graph_),
      admission_(graph_, memory_, gradient_slots_),
      clock_(plan::ResourcesOfLanes(job.plan, job.costs.Cores())),
      heads_(job.plan, queues_, graph_, admission_, clock_),
      records_(job.table,
               frontier_.initialized() ? records : absl::Span<const command::ObjectView>()),
      builder_(job.model, job.plan, job.layout, job.kept, graph_, memory_, progress_),
      writer_(job.model, job.plan, job.layout, job.kept, job.table, graph_, memory_, records_),
      outstanding_(lane_table_.size()),
      durations_(lane_table_.size()),
      gradient_times_(job.model) {}

// ---- What is added to the graph ----

absl::Status Generation::Begin() {
  const int64_t first = frontier_.step();
  progress_.Begin(first);
  // Nothing is left to do, and nothing to save.
  if (first >= job_.end_step && job_.saved_version >= first) return absl::OkStatus();
  if (!frontier_.initialized()) {
    progress_.Track(first);
    builder_.AddInitialize(first);
  }
  if (first >= job_.end_step) AddCheckpoint(first - 1);
  return AppendSteps();
}

bool Generation::CheckpointDue(int64_t step) const {
  if (step + 1 <= job_.saved_version) return false;
  if (std::find(checkpoints_.begin(), checkpoints_.end(), step) != checkpoints_.end()) return false;
  if (step + 1 == job_.end_step) return true;
  switch (job_.saving) {
    case Saving::kAsPlanned: {
      const int64_t every = job_.options.save_steps;
      return every > 0 && (step + 1) % every == 0;
    }
    case Saving::kNotNow:
      return false;
    case Saving::kNext:
      return !CheckpointUnderWay();
  }
  return false;
}

bool Generation::CheckpointUnderWay() const {
  return std::any_of(checkpoints_.begin(), checkpoints_.end(),
                     [this](int64_t step) { return step + 1 > job_.saved_version; });
}

void Generation::AddCheckpoint(int64_t step) {
  builder_.AddCheckpoint(step);
  checkpoints_.push_back(step);
}

absl::Status Generation::AppendSteps() {
  while (progress_.next() < job_.end_step && progress_.RoomForNext()) {
    HARMONY_RETURN_IF_ERROR(AppendStep(progress_.next()));
  }
  return absl::OkStatus();
}

absl::Status Generation::AppendStep(int64_t step) {
  graph_.ForgetBefore(progress_.completed() - 1);
  progress_.BeginNext();
  HARMONY_ASSIGN_OR_RETURN(recovery::StepWork work,
                           recovery::DeriveStepWork(model_, plan_, job_.layout, frontier_, step));
  const bool first = step == frontier_.step();
  if (first) gradient_slots_.Pin(frontier_, work);
  if (work.resumed || (first && job_.resumed)) resumed_steps_.push_back(step);
  // Updates wait for a checkpoint of the state before them; so a state that is half updated has it.
  bool untouched = true;
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    untouched = untouched && !frontier_.Touched(static_cast<int>(block), step);
  }
  const bool save = CheckpointDue(step - 1) && step > 0 && untouched;
  if (save) checkpoints_.push_back(step - 1);
  HARMONY_RETURN_IF_ERROR(builder_.AddStep(work, save));
  if (step + 1 == job_.end_step && CheckpointDue(step)) AddCheckpoint(step);
  gradient_slots_.Request(work, builder_.backward_executions());
  admission_.Admit();
  heads_.Changed();
  return absl::OkStatus();
}

// ---- What is issued next ----

absl::StatusOr<int> Generation::NextQueue() {
  for (;;) {
    HARMONY_RETURN_IF_ERROR(AppendSteps());
    const int queue = heads_.Pick();
    if (queue < 0) return graph_.empty() ? absl::StatusOr<int>(-1) : Stuck();
    Node& head = HeadOf(queue);
    if (head.state != NodeState::kWayOpen) return queue;
    heads_.Taken(queue);
    if (ChooseWay(TimesOfWays(head)) == Way::kDirect) {
      GoDirect(head);
    } else {
      GoByHost(head);
    }
  }
}

// An output goes from device to device only when the consumer has its slots and one of them is
// free, or that a task which is issued will free; else by way of the host. So no execution ever
// waits for a later one: a slow consumer does not hold up its producer's device, and nothing can
// lock up.
WayTimes Generation::TimesOfWays(const Node& send) {
  WayTimes times;
  const GroupExecution& execution = graph_.execution(send.execution);
  const GroupExecution& consumer = graph_.ConsumerOf(send);
  const NodeId slot_user = SlotUser(consumer, send);
  times.can_send =
      admission_.HasSlots(consumer) && (slot_user == kNoNode || graph_.Resolved(slot_user));
  if (!times.can_send) return times;
  const WayDurations& takes = DurationsOfWays(send);
  Nanos slot_free;
  if (slot_user == kNoNode) {
    slot_free = admission_.InputSlotsFreeAt(consumer);
  } else if (!graph_.Forgotten(slot_user)) {
    slot_free = graph_.FinishOf(slot_user);
  }
  const Nanos made = heads_.ReadyAt(send.queue);
  times.direct = clock_.FinishIfIssued(send.lane, std::max(made, slot_free), takes.send);
  const Node& out = graph_.node(execution.positions[static_cast<size_t>(send.position)].passed_on);
  const Nanos at_host = out.state == NodeState::kIssued
                            ? out.finish
                            : clock_.FinishIfIssued(out.lane, made, takes.out);
  const int in_lane = graph_.node(send.host_in).lane;
  times.by_host = clock_.FinishIfIssued(in_lane, std::max(at_host, slot_free), takes.in);
  times.host_work = takes.in + (send.host_out == kNoNode ? Nanos() : takes.out);
  return times;
}

const WayDurations& Generation::DurationsOfWays(const Node& send) {
  GroupExecution& execution = graph_.execution(send.execution);
  const GroupExecution& consumer = graph_.ConsumerOf(send);
  if (execution.way_device == consumer.device) return *execution.way_durations;
  execution.way_device = consumer.device;
  const Bytes size =
      execution.kind == ExecutionKind::kForward
          ? model::BoundaryBytes(model_, execution.layers.last + 1, plan_.microbatch_size)
          : model::BoundaryGradientBytes(model_, execution.layers.first, plan_.microbatch_size);
  const auto takes = [&](command::LaneKind lane, int device, command::Endpoint from,
                         command::Endpoint to, int microbatches) {
    command::Command command;
    command.header.lane = static_cast<uint32_t>(lane_table_.IndexOf({lane, device}));
    command::Transfer copy;
    copy.source = from;
    copy.destination = to;
    copy.size = size * microbatches;
    copy.traffic = command::TrafficClass::kBoundary;
    command.body = std::move(copy);
    return job_.costs.Duration(command);
  };
  const command::Endpoint host, from{execution.device, Bytes()}, to{consumer.device, Bytes()};
  execution.way_durations = {
      takes(command::LaneKind::kP2P, execution.device, from, to, consumer.task_microbatches),
      takes(command::LaneKind::kD2H, execution.device, from, host, execution.task_microbatches),
      takes(command::LaneKind::kH2DStream, consumer.device, host, to, consumer.task_microbatches)};
  return *execution.way_durations;
}

void Generation::GoDirect(Node& send) {
  const NodeId slot_user = SlotUser(graph_.ConsumerOf(send), send);
  send.state = NodeState::kPending;
  if (slot_user != kNoNode) send.deps.push_back(slot_user);
  Drop(send.host_in);
  if (send.host_out != kNoNode) Drop(send.host_out);
}

void Generation::GoByHost(Node& send) {
  for (NodeId id : {send.host_in, send.host_out}) {
    if (id == kNoNode) continue;
    Node& node = graph_.node(id);
    node.state = NodeState::kPending;
    heads_.ChangedAt(node.queue);
  }
  Drop(graph_.queue(send.queue).front());
}

void Generation::Drop(NodeId id) {
  graph_.SetDropped(id);
  Node& node = graph_.node(id);
  Resolved(node);
  heads_.ChangedAt(node.queue);
  if (admission_.AfterDrop(node)) heads_.ChangedOn(graph_.execution(node.execution).device);
}

void Generation::Resolved(Node& node) {
  progress_.Resolved(node);
  heads_.Resolved(node);
}

absl::Status Generation::Stuck() const {
  std::string text = "nothing can be issued";
  for (size_t d = 0; d < memory_.size(); ++d) {
    const DeviceMemory& memory = memory_[d];
    if (memory.items() == 0 || memory.admitted(memory.items() - 1)) continue;
    absl::StrAppend(&text, "; device ", d, " holds ", FormatBytesExact(memory.held()), " of ",
                    FormatBytesExact(memory.resident()), " and waits for more");
  }
  if (gradient_slots_.waiting()) {
    absl::StrAppend(&text, "; gradients wait for the arena's ring of ",
                    FormatBytesExact(ring().size()));
  }
  for (int queue = 0; queue < graph_.num_queues(); ++queue) {
    if (graph_.queue(queue).empty()) continue;
    const Node& head = HeadOf(queue);
    absl::StrAppend(&text, "; ", DebugString(lane_table_.LaneAt(head.lane)), " has ",
                    TraitsOf(head.kind).name, " of step ", head.step, " position ", head.position);
    if (head.execution >= 0)
      absl::StrAppend(&text, " group ", graph_.execution(head.execution).group);
  }
  return absl::ResourceExhaustedError(text);
}

// ---- Issuing it ----

absl::Status Generation::Issue(std::vector<command::Command>& commands) {
  for (;;) {
    if (held_back_ < 0) {
      HARMONY_ASSIGN_OR_RETURN(held_back_, NextQueue());
    }
    if (held_back_ < 0) return absl::OkStatus();
    const auto window = static_cast<uint64_t>(job_.options.window);
    const Node& head = HeadOf(held_back_);
    const bool full = outstanding_.outstanding(head.lane) >= window;
    if (full || head.step > progress_.completed() + 1) return absl::OkStatus();
    IssueHead(std::exchange(held_back_, -1), commands);
  }
}

void Generation::IssueHead(int queue, std::vector<command::Command>& commands) {
  const Node& node = HeadOf(queue);
  Users users;
  command::Command command;
  WriteHead(node, users, command);
  FillWaits(node, users, command);
  command.header.expected = job_.costs.Duration(command);
  outstanding_.Add(node.lane, command);
  Issued(queue, users, command.header.expected);
  commands.push_back(std::move(command));
}

void Generation::WriteHead(const Node& node, Users& users, command::Command& command) {
  command.header.id = next_id_++;
  command.header.lane = static_cast<uint32_t>(node.lane);
  command.header.signal_value = outstanding_.issued(node.lane) + 1;
  command.header.step = node.step;
  const bool recovery =
      std::find(resumed_steps_.begin(), resumed_steps_.end(), node.step) != resumed_steps_.end();
  const bool gradient = TraitsOf(node.kind).writes == FirstWrite::kArenaGradient;
  writer_.WriteBody(node, gradient ? gradient_slots_.SlotOf(node) : Bytes(0), recovery, command,
                    users);
  for (const command::SemaphoreWait& wait : users.waits) {
    users.finish =
        std::max(users.finish, clock_.FinishOf(static_cast<int>(wait.semaphore), wait.value));
  }
}

void Generation::FillWaits(const Node& node, Users& users, command::Command& command) const {
  admission_.CollectUsers(node, users);
  for (NodeId dep : node.deps) {
    if (graph_.Forgotten(dep)) continue;
    const Node& before = graph_.node(dep);
    if (before.state != NodeState::kDropped) AddUser(users, before);
  }
  for (const command::SemaphoreWait& wait : users.waits) {
    if (wait.semaphore != static_cast<uint32_t>(node.lane)) command.header.waits.push_back(wait);
  }
  std::sort(command.header.waits.begin(), command.header.waits.end());
}

void Generation::Issued(int queue, const Users& users, Nanos duration) {
  const Nanos ready = std::max(heads_.ReadyAt(queue), users.finish);
  const NodeId id = graph_.queue(queue).front();
  Node& node = graph_.node(id);
  const int lane = node.lane;
  node.value = outstanding_.issued(lane);
  const Nanos stall = node.gradient_copies == kNoNode
                          ? Nanos()
                          : StallOf(node, std::max(ready, clock_.free_at(lane)), duration);
  graph_.SetIssued(id, clock_.Issue(lane, ready, duration, stall));
  graph_.queue(queue).pop_front();
  heads_.Taken(queue);
  Resolved(node);
  if (const int device = admission_.AfterIssue(node); device >= 0) heads_.ChangedOn(device);
  if (lane == update_lane_) last_host_step_ = std::max(last_host_step_, node.step);
  bool slots = node.kind == NodeKind::kCompute && gradient_slots_.AfterCompute();
  if (node.kind == NodeKind::kUpdate) {
    progress_.AfterUpdate(node);
    slots = gradient_slots_.AfterUpdate(node);
  }
  if (slots) heads_.Changed();
}

Nanos Generation::StallOf(const Node& node, Nanos begin, Nanos duration) const {
  const GroupExecution& execution = graph_.execution(node.execution);
  model::GradientStall stall(gradient_times_, BackwardTaskOf(execution), execution.layers,
                             AwaitedBy(node, execution), begin, duration);
  for (int i = static_cast<int>(execution.references.size()) - 1; i >= 0; --i) {
    stall.FreeAt(model_.references[execution.references[i]].layer,
                 graph_.FinishOf(CopyOf(node.gradient_copies, i)));
  }
  return stall.total();
}

// ---- Issuing without commands: what the modelled times alone say ----

absl::Status Generation::RunDry(DryRunTimes& times) {
  times.step_ends.resize(static_cast<size_t>(job_.end_step));
  std::vector<plan::LaneWork> last_step(static_cast<size_t>(lane_table_.size()));
  for (;;) {
    HARMONY_ASSIGN_OR_RETURN(const int queue, NextQueue());
    if (queue < 0) {
      times.busiest = plan::BusiestResource(clock_.resources(), last_step);
      return absl::OkStatus();
    }
    const Node& node = HeadOf(queue);
    const int lane = node.lane;
    Users users;
    const Nanos duration = DurationOf(node, users);
    if (node.step + 1 == job_.end_step && !TraitsOf(node.kind).once) {
      last_step[static_cast<size_t>(lane)].busy += duration;
      ++last_step[static_cast<size_t>(lane)].commands;
    }
    outstanding_.Pass(lane);
    Issued(queue, users, duration);
    ++times.commands;
    if (lane != update_lane_) continue;
    if (node.kind == NodeKind::kUpdate) {
      Nanos& end = times.step_ends[static_cast<size_t>(node.step)];
      end = std::max(end, node.finish);
    }
    progress_.OnUpdatesCompleted(outstanding_.completed(lane));
  }
}

int Generation::PeerOf(const Node& node) const {
  if (node.kind == NodeKind::kSend) return graph_.ConsumerOf(node).device;
  if (node.kind != NodeKind::kKeep) return -1;
  const int m = FirstMicrobatch(graph_.execution(node.execution), node.position);
  return job_.kept.StashDevice(node.index, m);
}

Nanos Generation::DurationOf(const Node& node, Users& users) {
  const GroupExecution* const execution =
      node.execution >= 0 ? &graph_.execution(node.execution) : nullptr;
  const SumEdge edge =
      node.kind == NodeKind::kCompute ? EdgeOf(plan_, *execution, node.position) : SumEdge::kNone;
  const int peer = PeerOf(node);
  const Nanos* const known =
      execution == nullptr ? nullptr : durations_.Find(node, *execution, edge, peer);
  if (known != nullptr && !TraitsOf(node.kind).shares_arena) return *known;
  command::Command command;
  WriteHead(node, users, command);
  if (known != nullptr) return *known;
  const Nanos duration = job_.costs.Duration(command);
  if (execution != nullptr) durations_.Remember(node, *execution, edge, peer, duration);
  return duration;
}

// ---- Progress ----

void Generation::OnLaneProgress(int lane, uint64_t value) {
  outstanding_.Complete(lane, value, [this](const command::Command& command) {
    const auto* host = std::get_if<command::HostTask>(&command.body);
    if (host != nullptr && host->kind == command::HostTaskKind::kCheckpoint) {
      job_.saved_version = std::max(job_.saved_version, command.header.step + 1);
      job_.saving = Saving::kAsPlanned;
    }
  });
  progress_.OnUpdatesCompleted(outstanding_.completed(update_lane_));
}

void Generation::Stop() {
  const int64_t current = std::max(progress_.completed(), frontier_.step());
  const int64_t end = last_host_step_ > current ? current + 2 : current + 1;
  if (end >= job_.end_step) return;
  job_.end_step = end;
  if (progress_.next() <= end - 1) return;  // AppendStep adds the checkpoint
  graph_.CancelFrom(end);
  checkpoints_.erase(std::remove_if(checkpoints_.begin(), checkpoints_.end(),
                                    [&](int64_t step) { return step >= end; }),
                     checkpoints_.end());
  gradient_slots_.CancelFrom(end);
  progress_.CancelFrom(end);
  if (CheckpointDue(end - 1)) AddCheckpoint(end - 1);
  heads_.Restart();
  held_back_ = -1;
}

bool Generation::done() const {
  return progress_.completed() >= job_.end_step && graph_.empty() && outstanding_.none();
}

}  // namespace harmony::dispatch
