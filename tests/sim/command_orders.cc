#include "tests/sim/command_orders.h"

#include <algorithm>

#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "common/plan/arena_layout.h"

namespace harmony::sim {
namespace {

using command::ObjectKind;

class Footprints {
 public:
  Footprints(const model::ModelSpec& model, const plan::Plan& plan)
      : model_(model),
        plan_(plan),
        layout_(model, plan),
        table_(model, plan.num_microbatches, plan.replicas),
        placed_(static_cast<size_t>(table_.size())) {}

  std::vector<Access> Of(const command::Command& command);

 private:
  void Add(const command::ComputeTask& task, int device);
  void Add(const command::Transfer& copy);
  void Add(const command::HostTask& task, int64_t step);

  void Read(int memory, Bytes at, Bytes size) { all_.push_back({memory, at, size, false}); }
  void Write(int memory, Bytes at, Bytes size) { all_.push_back({memory, at, size, true}); }
  void Record(int record, bool write) {
    all_.push_back({Access::kRecords, Bytes(record), Bytes(1), write});
  }
  void ObjectRecord(ObjectKind kind, int index, int microbatch, bool write) {
    Record(table_.IndexOf({kind, index, microbatch}), write);
  }
  void Gradients(const std::vector<int>& records);
  // Of a parameter and its moments, data and records.
  void Block(int block, bool write);
  const model::ParamBlock& BlockOf(int reference) const {
    return model_
        .blocks[static_cast<size_t>(model_.references[static_cast<size_t>(reference)].block)];
  }
  int num_blocks() const { return static_cast<int>(model_.blocks.size()); }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const plan::ArenaLayout layout_;
  const command::ObjectTableLayout table_;
  std::vector<std::pair<Bytes, Bytes>> placed_;  // by record: offset and size of what was committed
  std::vector<Access> all_;
};

void Footprints::Gradients(const std::vector<int>& records) {
  for (const int record : records) {
    const auto& [offset, size] = placed_[static_cast<size_t>(record)];
    Record(record, false);
    Read(Access::kArena, offset, size);
  }
}

void Footprints::Block(int block, bool write) {
  for (const ObjectKind kind :
       {ObjectKind::kParameter, ObjectKind::kMoment1, ObjectKind::kMoment2}) {
    ObjectRecord(kind, block, 0, write);
    if (static_cast<int>(kind) > plan_.optimizer_moments) continue;
    all_.push_back({Access::kArena, command::PersistentOffset(model_, {kind, block, 0}),
                    model_.blocks[static_cast<size_t>(block)].weight_bytes, write});
  }
}

void Footprints::Add(const command::ComputeTask& task, int device) {
  const int64_t microbatches = task.samples / plan_.microbatch_size;
  const auto boundary_bytes = [&](int boundary) {
    return model::BoundaryBytes(model_, boundary, plan_.microbatch_size) * microbatches;
  };
  const auto gradient_bytes = [&](int boundary) {
    return model::BoundaryGradientBytes(model_, boundary, plan_.microbatch_size);
  };
  for (const command::WeightBinding& weight : task.weights) {
    Read(device, weight.offset, BlockOf(weight.reference).weight_bytes);
  }
  for (const command::InputBinding& input : task.inputs) {
    Read(device, input.offset, layout_.input_bytes(input.input) * microbatches);
  }
  if (task.input) {
    const bool stash = task.kind == command::TaskKind::kBackward;
    Read(device, *task.input,
         boundary_bytes(stash ? std::max(task.layers.first, 1) : task.layers.first));
  }
  if (task.output_gradient) {
    Read(device, *task.output_gradient, gradient_bytes(task.layers.last + 1));
  }
  if (task.kept) {
    Write(device, *task.kept, model::KeptActivationBytes(model_, task.layers, task.samples));
  }
  for (size_t i = 0; i < task.gradients.size(); ++i) {
    const command::WeightBinding& gradient = task.gradients[i];
    // Of the buffers the task's own, and those that wait where it is added to them.
    const Bytes size = BlockOf(gradient.reference).accumulator_bytes;
    const int additions = task.last_microbatch ? model::AdditionsAfter(task.replica) : 0;
    const int first = model::WaitingSums(task.replica) - additions;
    const auto buffer = [&](int i) { return gradient.offset + task.gradient_stride * i; };
    const bool waits = !task.gradient_waits.empty();
    Write(device, buffer(first + additions), size);
    if (waits && task.awaited == model::Awaited::kBuffers) {
      all_.back().after = task.gradient_waits[i];
    }
    for (int waiting = first; waiting < first + additions; ++waiting) {
      Write(device, buffer(waiting), size);
      if (waits) all_.back().after = task.gradient_waits[i];
    }
  }
  for (const command::OutputBinding& output : task.outputs) {
    Write(device, output.offset, boundary_bytes(output.boundary));
  }
  if (task.input_gradient) {
    Write(device, *task.input_gradient, gradient_bytes(task.layers.first));
  }
  if (task.loss) Write(device, *task.loss, Bytes(sizeof(command::LossSlot)));
}

void Footprints::Add(const command::Transfer& copy) {
  Read(copy.source.device, copy.source.offset, copy.size);
  Write(copy.destination.device, copy.destination.offset, copy.size);
  if (copy.expect) Record(copy.expect->record, false);
  for (const int record : copy.retire) {
    Record(record, true);
    all_.back().frees = true;
  }
  if (!copy.commit) return;
  Record(copy.commit->record, true);
  placed_[static_cast<size_t>(copy.commit->record)] = {copy.destination.offset, copy.size};
}

void Footprints::Add(const command::HostTask& task, int64_t step) {
  const int parity = static_cast<int>(step & 1);
  switch (task.kind) {
    case command::HostTaskKind::kInitialize:
      for (int block = 0; block < num_blocks(); ++block) Block(block, true);
      return;
    case command::HostTaskKind::kLoadBatch:
      ObjectRecord(ObjectKind::kBatch, parity, 0, true);
      return Write(Access::kArena, task.offset, layout_.batch_bytes());
    case command::HostTaskKind::kStepScalars:
      for (int part = 0; part < plan_.loss_parts(); ++part) {
        ObjectRecord(ObjectKind::kLoss, 0, part, false);
        Read(Access::kArena, layout_.Loss(part), layout_.loss_bytes());
      }
      ObjectRecord(ObjectKind::kStepScalars, parity, 0, true);
      return Write(Access::kArena, task.offset, Bytes(sizeof(command::StepScalars)));
    case command::HostTaskKind::kNorm:
      Gradients(task.gradient_records);
      ObjectRecord(ObjectKind::kNorm, task.block, 0, true);
      return Write(Access::kArena, task.offset, Bytes(sizeof(command::NormSlot)));
    case command::HostTaskKind::kClip:
      for (int block = 0; block < num_blocks(); ++block) {
        ObjectRecord(ObjectKind::kNorm, block, 0, false);
        Read(Access::kArena, layout_.Norm(block), Bytes(sizeof(command::NormSlot)));
      }
      ObjectRecord(ObjectKind::kStepScalars, parity, 0, true);
      return Write(Access::kArena, layout_.Scalars(parity), Bytes(sizeof(command::StepScalars)));
    case command::HostTaskKind::kUpdate:
      Gradients(task.gradient_records);
      ObjectRecord(ObjectKind::kStepScalars, parity, 0, false);
      Read(Access::kArena, layout_.Scalars(parity), Bytes(sizeof(command::StepScalars)));
      return Block(task.block, true);
    case command::HostTaskKind::kCheckpoint:
      for (int block = 0; block < num_blocks(); ++block) Block(block, false);
      return;
  }
}

std::vector<Access> Footprints::Of(const command::Command& command) {
  all_.clear();
  if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
    const command::LaneTable lanes(static_cast<int>(plan_.devices.size()));
    Add(*task, lanes.LaneAt(static_cast<int>(command.header.lane)).device);
  } else if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
    Add(*copy);
  } else {
    Add(std::get<command::HostTask>(command.body), command.header.step);
  }
  return all_;
}

bool Meet(const Access& a, const Access& b) {
  if (a.frees && b.frees) return false;
  return a.memory == b.memory && (a.write || b.write) && a.begin < b.begin + b.size &&
         b.begin < a.begin + a.size;
}

// Of what two commands touch. Where all that they both touch comes after waits on the later one's
// way, the weakest of these.
std::optional<Conflict> ConflictOf(const std::vector<Access>& earlier,
                                   const std::vector<Access>& later) {
  std::optional<Conflict> conflict;
  for (const Access& a : earlier) {
    for (const Access& b : later) {
      if (!Meet(a, b)) continue;
      if (!b.after) return Conflict{};
      if (!conflict || b.after->value < conflict->after->value) conflict = Conflict{0, 0, b.after};
    }
  }
  return conflict;
}

}  // namespace

std::vector<std::vector<Access>> AccessesOf(const model::ModelSpec& model, const plan::Plan& plan,
                                            const std::vector<command::Command>& commands) {
  Footprints footprints(model, plan);
  std::vector<std::vector<Access>> accesses;
  for (const command::Command& command : commands) accesses.push_back(footprints.Of(command));
  return accesses;
}

std::vector<Conflict> ConflictsOf(const std::vector<std::vector<Access>>& accesses) {
  std::vector<Conflict> conflicts;
  for (size_t later = 0; later < accesses.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const auto found = ConflictOf(accesses[earlier], accesses[later]);
      if (found) conflicts.push_back({earlier, later, found->after});
    }
  }
  return conflicts;
}

CommandOrders::CommandOrders(const std::vector<command::Command>& commands, int lanes)
    : commands_(commands), of_lane_(static_cast<size_t>(lanes)) {
  for (size_t c = 0; c < commands.size(); ++c) {
    at_start_.push_back(KnownAtStart(c, std::nullopt));
    Known end = at_start_.back();
    for (const command::SemaphoreWait& wait : AllWaits(commands[c])) Join(wait, end);
    at_end_.push_back(std::move(end));
    of_lane_[commands[c].header.lane].push_back(c);
  }
}

CommandOrders::Known CommandOrders::KnownAtStart(size_t command,
                                                 std::optional<size_t> without) const {
  Known known(of_lane_.size(), 0);
  const command::CommandHeader& header = commands_[command].header;
  Join({header.lane, header.signal_value - 1}, known);
  for (size_t w = 0; w < header.waits.size(); ++w) {
    if (without != w) Join(header.waits[w], known);
  }
  return known;
}

void CommandOrders::Join(const command::SemaphoreWait& wait, Known& known) const {
  if (wait.value == 0) return;
  const size_t command = of_lane_[wait.semaphore].at(static_cast<size_t>(wait.value - 1));
  const Known& other = at_end_[command];
  for (size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], other[i]);
  known[wait.semaphore] = std::max(known[wait.semaphore], wait.value);
}

bool CommandOrders::Before(const Conflict& conflict) const {
  const command::CommandHeader& header = commands_[conflict.earlier].header;
  Known known = at_start_[conflict.later];
  if (conflict.after) Join(*conflict.after, known);
  return known[header.lane] >= header.signal_value;
}

bool CommandOrders::Implied(size_t command, size_t wait) const {
  const command::SemaphoreWait& dropped = commands_[command].header.waits[wait];
  return KnownAtStart(command, wait)[dropped.semaphore] >= dropped.value;
}

std::optional<Conflict> FindUnordered(const std::vector<command::Command>& commands, int lanes,
                                      const std::vector<Conflict>& conflicts) {
  const CommandOrders orders(commands, lanes);
  for (const Conflict& conflict : conflicts) {
    if (!orders.Before(conflict)) return conflict;
  }
  return std::nullopt;
}

}  // namespace harmony::sim
