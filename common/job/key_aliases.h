#pragma once

// Keys as other trainers call them. Private to this folder.

#include "absl/strings/string_view.h"

namespace harmony::job {

// The key of the same meaning; `name` itself where it is no other trainer's name for one.
absl::string_view OwnName(absl::string_view name);

// What to write instead of a key that other trainers have and that has no single counterpart here,
// a sentence; empty where nothing is known of it.
absl::string_view AdviceFor(absl::string_view name);

// Together they say what micro_batch_size and global_batch_size say (ReadJobFile).
inline constexpr absl::string_view kSamplesPerTask = "per_device_train_batch_size";
inline constexpr absl::string_view kAccumulation = "gradient_accumulation_steps";

// Allows a run to go on with data that were appended to (JobFile::appended); of one submission.
inline constexpr absl::string_view kAppended = "data.appended";

// Says by the data what max_steps says (JobFile::epochs).
inline constexpr absl::string_view kEpochs = "epochs";

}  // namespace harmony::job
