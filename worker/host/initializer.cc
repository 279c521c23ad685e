#include "worker/host/initializer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/cancel.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/file.h"
#include "common/io/hf_directory.h"
#include "worker/host/init.h"
#include "worker/optimizer/protected_update.h"

namespace harmony::worker {
namespace {

// Elements of a random tensor that one thread fills at a time.
constexpr int64_t kPieceElements = int64_t{1} << 18;

using Work = std::function<absl::Status()>;

// Runs all on the pool; the first error in list order wins, and others may then be skipped.
absl::Status RunAll(const HostContext& context, const std::vector<Work>& work, ThreadPool& pool) {
  Mutex mutex;
  std::optional<std::pair<int64_t, absl::Status>> first;
  pool.ParallelFor(static_cast<int64_t>(work.size()), [&](int64_t i) {
    {
      MutexLock lock(mutex);
      if (first.has_value() && first->first < i) return;
    }
    absl::Status status = CheckNotCancelled(context.job.cancelled);
    if (status.ok()) status = work[static_cast<size_t>(i)]();
    if (status.ok()) return;
    MutexLock lock(mutex);
    if (!first.has_value() || i < first->first) first = {i, std::move(status)};
  });
  return first.has_value() ? first->second : absl::OkStatus();
}

template <typename Fn>
void ForEachTensor(const HostContext& context, Fn&& fn) {
  for (int block = 0; block < context.num_blocks(); ++block) {
    for (const model::TensorSpec& tensor : context.block(block).tensors) fn(block, tensor);
  }
}

absl::Status FillRandom(const HostContext& context, ThreadPool& pool) {
  std::vector<Work> work;
  ForEachTensor(context, [&](int block, const model::TensorSpec& tensor) {
    const absl::Span<float> values = context.Values(command::ObjectKind::kParameter, block, tensor);
    for (int64_t at = 0; at < tensor.elements; at += kPieceElements) {
      const absl::Span<float> piece =
          values.subspan(static_cast<size_t>(at),
                         static_cast<size_t>(std::min(kPieceElements, tensor.elements - at)));
      work.push_back([&context, &tensor, block, at, piece] {
        InitializeRange(tensor, block, context.job.spec.seed, at, piece);
        return absl::OkStatus();
      });
    }
  });
  return RunAll(context, work, pool);
}

absl::Status FillFromModelDirectory(const HostContext& context, ThreadPool& pool) {
  HARMONY_ASSIGN_OR_RETURN(const io::ModelSource source,
                           io::OpenModelSource(context.job.spec.model_name_or_path));
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader reader, io::OpenWeights(source));
  std::vector<Work> work;
  ForEachTensor(context, [&](int block, const model::TensorSpec& tensor) {
    work.push_back([&context, &reader, &tensor, block] {
      return reader.Read(context.weights.of(tensor).name, tensor.value_dtype(),
                         context.DataOf(command::ObjectKind::kParameter, block, tensor));
    });
  });
  return RunAll(context, work, pool);
}

absl::Status FillFromCheckpoint(const HostContext& context, ThreadPool& pool) {
  const std::string& path = context.job.resume_checkpoint;
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointManifest manifest,
                           io::VerifyCheckpoint(path, context.job.cancelled));
  if (manifest.step != context.job.first_step) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": holds step ", manifest.step, ", the job starts at ", context.job.first_step));
  }
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader weights,
                           io::CheckpointReader::OpenFile(io::JoinPath(path, "model.safetensors")));
  std::optional<io::CheckpointReader> moments;
  if (context.moments() > 0) {
    HARMONY_ASSIGN_OR_RETURN(
        moments, io::CheckpointReader::OpenFile(io::JoinPath(path, "optimizer.safetensors")));
  }
  const std::vector<std::string> names = job::MomentNames(context.job.spec);
  std::vector<Work> work;
  ForEachTensor(context, [&](int block, const model::TensorSpec& tensor) {
    const auto read = [&context, &tensor, block](const io::CheckpointReader& reader,
                                                 absl::string_view prefix,
                                                 command::ObjectKind kind) {
      return reader.Read(absl::StrCat(prefix, tensor.name), tensor.value_dtype(),
                         context.DataOf(kind, block, tensor));
    };
    work.push_back([&weights, read] { return read(weights, "", command::ObjectKind::kParameter); });
    if (!moments.has_value() || tensor.role != model::TensorRole::kTrained) return;
    for (size_t i = 0; i < names.size(); ++i) {
      work.push_back([&moments, &names, read, i] {
        return read(*moments, absl::StrCat(names[i], "."),
                    HostContext::MomentKind(static_cast<int>(i)));
      });
    }
  });
  return RunAll(context, work, pool);
}

// The working copies, of all that was filled in.
absl::Status RoundAllMasters(const HostContext& context, ThreadPool& pool) {
  std::vector<Work> work;
  for (int block = 0; block < context.num_blocks(); ++block) {
    if (!context.block(block).has_masters) continue;
    work.push_back([&context, block] {
      RoundMasters(context.block(block),
                   StateInSegment(context.segment, context.job.model, context.moments(), block));
      return absl::OkStatus();
    });
  }
  return RunAll(context, work, pool);
}

constexpr command::ObjectKind kKinds[] = {
    command::ObjectKind::kMoment1, command::ObjectKind::kMoment2,
    command::ObjectKind::kParameter};  // in the order they are committed

absl::StatusOr<bool> AllCommitted(const HostContext& context) {
  for (int block = 0; block < context.num_blocks(); ++block) {
    for (command::ObjectKind kind : kKinds) {
      HARMONY_ASSIGN_OR_RETURN(const command::ObjectView view,
                               context.segment.ReadRecord(context.RecordOf(kind, block)));
      if (view.state != command::ObjectState::kClean ||
          view.version != static_cast<uint64_t>(context.job.first_step)) {
        return false;
      }
    }
  }
  return true;
}

void CommitAll(const HostContext& context) {
  for (int block = 0; block < context.num_blocks(); ++block) {
    for (command::ObjectKind kind : kKinds) {
      command::ObjectView view{{kind, block, 0},
                               Bytes(),
                               Bytes(),
                               static_cast<uint64_t>(context.job.first_step),
                               command::ObjectState::kClean};
      // Moments that the optimizer lacks have records of no size: "there, nothing to it".
      if (static_cast<int>(kind) <= context.moments()) {
        view.offset = command::PersistentOffset(context.job.model, view.key);
        const model::ParamBlock& stored = context.block(block);
        view.size =
            kind == command::ObjectKind::kParameter ? stored.weight_bytes : stored.moment_bytes;
      }
      context.segment.Publish(context.RecordOf(kind, block), view);
    }
  }
}

}  // namespace

absl::Status InitializeParameters(const HostContext& context, ThreadPool& pool) {
  HARMONY_ASSIGN_OR_RETURN(const bool done, AllCommitted(context));
  if (done) return absl::OkStatus();
  for (int block = 0; block < context.num_blocks(); ++block) {
    for (command::ObjectKind kind : kKinds) context.segment.SetFree(context.RecordOf(kind, block));
  }
  // The arena of a new job is zero: so are gaps, and moments that no checkpoint brings.
  if (!context.job.resume_checkpoint.empty()) {
    HARMONY_RETURN_IF_ERROR(FillFromCheckpoint(context, pool));
  } else if (context.job.spec.init == job::InitMode::kPretrained) {
    HARMONY_RETURN_IF_ERROR(FillFromModelDirectory(context, pool));
  } else {
    HARMONY_RETURN_IF_ERROR(FillRandom(context, pool));
  }
  HARMONY_RETURN_IF_ERROR(RoundAllMasters(context, pool));
  CommitAll(context);
  return absl::OkStatus();
}

}  // namespace harmony::worker
