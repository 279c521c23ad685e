#pragma once

// What is on its way from a device to another. The models give it no room on either.

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/baselines/engine/timeline.h"
#include "common/base/mutex.h"
#include "common/base/units.h"

namespace harmony::bench {

// Thread-safe.
class Messages {
 public:
  // What the operation makes is sent.
  void Expect(baselines::Operation made) { expected_.insert(made); }

  // What an operation made; forgotten where nobody sends it.
  void Leave(baselines::Operation made, absl::Span<const std::byte> contents) {
    if (!expected_.contains(made)) return;
    std::vector<std::byte> copy(contents.begin(), contents.end());
    MutexLock lock(mutex_);
    under_way_[made] = std::move(copy);
  }
  // The operation `by` sends it; the bytes that were moved.
  Bytes PassOn(baselines::Operation made, baselines::Operation by) {
    const std::vector<std::byte> message = Remove(made);
    std::vector<std::byte> copy = message;
    const Bytes moved(static_cast<int64_t>(copy.size()));
    MutexLock lock(mutex_);
    under_way_[by] = std::move(copy);
    return moved;
  }
  // Where it has arrived. Internal: nothing has been sent.
  absl::Status Take(baselines::Operation sent, std::byte* to) {
    const std::vector<std::byte> message = Remove(sent);
    if (message.empty()) return absl::InternalError("what another device sends is not there");
    std::memcpy(to, message.data(), message.size());
    return absl::OkStatus();
  }

 private:
  std::vector<std::byte> Remove(baselines::Operation operation) {
    MutexLock lock(mutex_);
    const auto found = under_way_.find(operation);
    if (found == under_way_.end()) return {};
    std::vector<std::byte> message = std::move(found->second);
    under_way_.erase(found);
    return message;
  }

  absl::flat_hash_set<baselines::Operation> expected_;  // before threads use it
  Mutex mutex_;
  absl::flat_hash_map<baselines::Operation, std::vector<std::byte>> under_way_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace harmony::bench
