#include "bench/baselines/engine/timeline.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

namespace harmony::baselines {

const char* ToString(Traffic traffic) {
  switch (traffic) {
    case Traffic::kWeights:
      return "weights";
    case Traffic::kGradients:
      return "gradients";
    case Traffic::kOptimizerState:
      return "optimizer_state";
    case Traffic::kActivations:
      return "activations";
    case Traffic::kInputs:
      return "inputs";
  }
  return "";
}

int64_t StepBytes::of(Traffic traffic) const {
  const auto at = static_cast<size_t>(traffic);
  return h2d[at] + d2h[at];
}
int64_t StepBytes::host_links() const {
  return std::accumulate(h2d.begin(), h2d.end(), int64_t{0}) +
         std::accumulate(d2h.begin(), d2h.end(), int64_t{0});
}
int64_t StepBytes::peer() const { return std::accumulate(p2p.begin(), p2p.end(), int64_t{0}); }

Timeline::Timeline(int num_devices, plan::LaneResources resources)
    : lanes_(num_devices),
      resources_(std::move(resources)),
      last_of_lane_(static_cast<size_t>(lanes_.size()), kNoOperation) {}

void Timeline::BeginStep() {
  bytes_.emplace_back();
  step_end_.emplace_back();
  busy_.emplace_back(static_cast<size_t>(lanes_.size()));
}

Operation Timeline::Add(command::Lane lane, Nanos duration, absl::Span<const Operation> after,
                        Queue queue) {
  const auto operation = static_cast<Operation>(lane_.size());
  const int index = lanes_.IndexOf(lane);
  lane_.push_back(index);
  step_.push_back(static_cast<int>(bytes_.size()) - 1);
  duration_.push_back(duration);
  first_wait_.push_back(waits_.size());
  if (queue == Queue::kInOrder) {
    Operation& before = last_of_lane_[static_cast<size_t>(index)];
    if (before != kNoOperation) waits_.push_back(before);
    before = operation;
  }
  for (Operation other : after) {
    if (other != kNoOperation) waits_.push_back(other);
  }
  busy_.back()[static_cast<size_t>(index)] += duration;
  return operation;
}

Operation Timeline::AddCopy(command::Lane lane, Nanos duration, Bytes size, Traffic traffic,
                            absl::Span<const Operation> after, Queue queue) {
  StepBytes& bytes = bytes_.back();
  auto& direction = lane.kind == command::LaneKind::kP2P   ? bytes.p2p
                    : lane.kind == command::LaneKind::kD2H ? bytes.d2h
                                                           : bytes.h2d;
  direction[static_cast<size_t>(traffic)] += size.count();
  return Add(lane, duration, after, queue);
}

absl::Span<const Operation> Timeline::WaitsOf(Operation operation) const {
  const auto at = static_cast<size_t>(operation);
  const size_t end = at + 1 < lane_.size() ? first_wait_[at + 1] : waits_.size();
  return absl::MakeConstSpan(waits_).subspan(first_wait_[at], end - first_wait_[at]);
}

Timeline::Order Timeline::MakeOrder() const {
  const size_t count = lane_.size();
  Order order{std::vector<size_t>(count + 1), std::vector<Operation>(waits_.size()),
              std::vector<int>(count)};
  for (Operation wait : waits_) ++order.first[static_cast<size_t>(wait) + 1];
  std::partial_sum(order.first.begin(), order.first.end(), order.first.begin());
  std::vector<size_t> next(order.first.begin(), order.first.end() - 1);
  for (size_t operation = 0; operation < count; ++operation) {
    const absl::Span<const Operation> waits = WaitsOf(static_cast<Operation>(operation));
    for (Operation wait : waits) {
      order.successors[next[static_cast<size_t>(wait)]++] = static_cast<Operation>(operation);
    }
    order.waits[operation] = static_cast<int>(waits.size());
  }
  return order;
}

void Timeline::Run() {
  Order order = MakeOrder();
  plan::ResourceClock clock(resources_);
  std::vector<Nanos> ready(lane_.size());
  end_.assign(lane_.size(), Nanos());
  using Entry = std::pair<Nanos, Operation>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (size_t operation = 0; operation < lane_.size(); ++operation) {
    if (order.waits[operation] == 0) queue.emplace(Nanos(), static_cast<Operation>(operation));
  }
  // What becomes ready never does so before what made it ready, so one pass serves all in order.
  while (!queue.empty()) {
    const auto operation = static_cast<size_t>(queue.top().second);
    queue.pop();
    end_[operation] = clock.Start(lane_[operation], ready[operation], duration_[operation]).end;
    Nanos& step_end = step_end_[static_cast<size_t>(step_[operation])];
    step_end = std::max(step_end, end_[operation]);
    for (size_t s = order.first[operation]; s < order.first[operation + 1]; ++s) {
      const auto next = static_cast<size_t>(order.successors[s]);
      ready[next] = std::max(ready[next], end_[operation]);
      if (--order.waits[next] == 0) queue.emplace(ready[next], order.successors[s]);
    }
  }
}

}  // namespace harmony::baselines
