#include "coordinator/runner/run_progress.h"

namespace harmony::runner {

Progress ProgressOf(const command::ObjectTableLayout& table,
                    const std::vector<command::ObjectView>& records) {
  Progress progress = {};
  for (size_t i = 0; i < records.size(); ++i) {
    const command::ObjectKind kind = table.KeyOf(static_cast<int>(i)).kind;
    const bool updated = kind <= command::ObjectKind::kMoment2;
    const size_t rank = updated ? 0 : kind == command::ObjectKind::kGradient ? 1 : 2;
    const auto version = static_cast<int64_t>(records[i].version);
    if (records[i].state == command::ObjectState::kClean) progress[rank] += version;
    if (records[i].state == command::ObjectState::kUpdating) progress[rank] += version - 1;
  }
  return progress;
}

}  // namespace harmony::runner
