#pragma once

// What all parts of the host executor share about one job. Constant after creation; thread-safe.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/command/objects.h"
#include "common/io/weight_map.h"
#include "common/ipc/segment.h"
#include "worker/host/host_executor.h"

namespace harmony::worker {

struct HostContext {
  ipc::Segment& segment;
  HostJob job;
  command::ObjectTableLayout table;
  io::WeightMap weights;         // names and types for the export
  std::string source_directory;  // of tokenizer files; empty: none

  int moments() const { return job::MomentsOf(job.spec); }
  int num_blocks() const { return static_cast<int>(job.model.blocks.size()); }
  const model::ParamBlock& block(int index) const {
    return job.model.blocks[static_cast<size_t>(index)];
  }
  // REQUIRES: 0 <= number < moments().
  static command::ObjectKind MomentKind(int number) {
    return static_cast<command::ObjectKind>(static_cast<int>(command::ObjectKind::kMoment1) +
                                            number);
  }
  int RecordOf(command::ObjectKind kind, int index) const {
    return table.IndexOf({kind, index, 0});
  }

  Bytes MasterOffset(int block_index) const {
    return command::MasterOffset(job.model, moments(), block_index);
  }
  // The exact value of a parameter (TensorSpec::value_dtype) or moment, in the arena.
  absl::Span<std::byte> DataOf(command::ObjectKind kind, int block_index,
                               const model::TensorSpec& tensor) const {
    const bool parameter = kind == command::ObjectKind::kParameter;
    const bool master = parameter && tensor.has_master();
    const Bytes start = master ? MasterOffset(block_index)
                               : command::PersistentOffset(job.model, {kind, block_index, 0});
    const model::StoredAs& form = parameter && !master ? tensor.weight : tensor.moment;
    return {segment.Arena(start + form.offset),
            static_cast<size_t>((SizeOf(form.dtype) * tensor.elements).count())};
  }
  // REQUIRES: it is fp32, as all that is trained.
  absl::Span<float> Values(command::ObjectKind kind, int block_index,
                           const model::TensorSpec& tensor) const {
    return {reinterpret_cast<float*>(DataOf(kind, block_index, tensor).data()),
            static_cast<size_t>(tensor.elements)};
  }

  // The record of an object that must be committed at `version`; FailedPrecondition otherwise.
  absl::StatusOr<command::ObjectView> Committed(command::ObjectKind kind, int index,
                                                uint64_t version, int part = 0) const;
};

}  // namespace harmony::worker
