// SimWorld: the sums of gradients that tasks add to.

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/sum_tree.h"
#include "tests/sim/simulator/sim_world.h"

namespace harmony::sim {

absl::Status SimWorld::StartGradient(const command::Command& command, size_t gradient) {
  const auto& task = std::get<command::ComputeTask>(command.body);
  const int device = lanes_.LaneAt(static_cast<int>(command.header.lane)).device;
  const command::WeightBinding& of = task.gradients[gradient];
  const uint64_t id = UserOf(command);
  const int64_t step = command.header.step;
  if (task.awaited == model::Awaited::kBuffers) {
    HARMONY_RETURN_IF_ERROR(StartOwnSum(id, task, of, step, devices_[device]));
  }
  return StartAddition(id, task, of, step, devices_[device]);
}

// Its gradients begin and end with their replica and their part; of a part of several shards the
// last one's sum is of all of them.
absl::Status SimWorld::CheckPart(const command::ComputeTask& task) const {
  if (task.gradients.empty()) return absl::OkStatus();
  const plan::LayerGroup& group = plan::BackwardGroupOf(plan_, task.layers.last);
  const int m = task.microbatch, of_replica = plan_.replica_microbatches();
  const int of_part = plan_.part_microbatches(group), part = m / of_part * of_part;
  const plan::Shard shard = plan::ShardOf(plan_, group, plan::ShardWith(plan_, group, m));
  if (task.first_microbatch != (m % of_replica == 0) ||
      task.last_microbatch != ((m + 1) % of_replica == 0) ||
      task.stores_gradients != ((m + 1) % of_part == 0)) {
    return absl::InternalError("accumulation does not begin and end with its replica and its part");
  }
  const int first = FirstOfSum(task), begin = first * of_replica;
  const bool subtree = first % static_cast<int>(std::bit_ceil(task.replica + 1U)) == 0;
  if (subtree && begin >= part && begin <= std::max(part, shard.first) &&
      (begin == part || !task.stores_gradients)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("adds up from microbatch ", begin, " on, which ",
                                          "is no subtree of the sum of its part"));
}

// The first replica of those that the buffers hold, this task's own among them.
int SimWorld::FirstOfSum(const command::ComputeTask& task) const {
  return task.microbatch / plan_.replica_microbatches() - task.replica;
}

absl::Status SimWorld::StartOwnSum(uint64_t id, const command::ComputeTask& task,
                                   const command::WeightBinding& gradient, int64_t step,
                                   ShadowMemory& memory) const {
  const int of_replica = plan_.replica_microbatches();
  const Bytes size = AccumulatorSize(gradient.reference);
  const Bytes own = gradient.offset + task.gradient_stride * model::WaitingSums(task.replica);
  if (!task.first_microbatch) {
    HARMONY_RETURN_IF_ERROR(
        memory.Expect(own, size,
                      Gradient(gradient.reference, task.microbatch / of_replica * of_replica,
                               task.microbatch, step)));
  }
  return memory.BeginWrite(id, own, size);
}

// What a buffer holds begins where what the one before holds ends: so every microbatch is in one of
// them.
absl::Status SimWorld::StartAddition(uint64_t id, const command::ComputeTask& task,
                                     const command::WeightBinding& gradient, int64_t step,
                                     ShadowMemory& memory) const {
  const int of_replica = plan_.replica_microbatches();
  const int replica = task.microbatch / of_replica, waiting = model::WaitingSums(task.replica);
  const Bytes size = AccumulatorSize(gradient.reference), stride = task.gradient_stride;
  const plan::LayerGroup& group = plan::BackwardGroupOf(plan_, task.layers.last);
  const plan::Shard shard =
      plan::ShardOf(plan_, group, plan::ShardWith(plan_, group, task.microbatch));
  const plan::ShardSum sum = plan::SumOf(plan_, group, shard);
  const bool all_there = (task.microbatch + 1) % sum.microbatches == 0;
  int end = FirstOfSum(task);  // replicas below are in the buffers before
  for (int buffer = 0; buffer < waiting; ++buffer) {
    // The largest power of two of replicas that is left of those before this one.
    const int left = replica - end, first = end;
    end += 1 << (31 - std::countl_zero(static_cast<uint32_t>(left)));
    if (buffer < sum.taken && !all_there) continue;  // may still be on its way
    HARMONY_RETURN_IF_ERROR(
        memory.Expect(gradient.offset + stride * buffer, size,
                      Gradient(gradient.reference, first * of_replica, end * of_replica, step)));
  }
  const int additions = task.last_microbatch ? model::AdditionsAfter(task.replica) : 0;
  for (int buffer = waiting - additions; buffer < waiting; ++buffer) {
    HARMONY_RETURN_IF_ERROR(memory.BeginWrite(id, gradient.offset + stride * buffer, size));
  }
  return absl::OkStatus();
}

}  // namespace harmony::sim
