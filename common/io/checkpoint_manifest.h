#pragma once

// Checkpoint directories: `OUTPUT_DIR/checkpoint-<step>`, the step being the number of updates that
// are in the parameters. Each holds manifest.json, which names every other file with its size and
// checksum, and what fixes the result. A directory appears whole (AtomicDirectory) and the manifest
// is written last, so one that can be read and verified is complete.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/resolved_keys.h"

namespace harmony::io {

struct CheckpointManifest {
  struct FileEntry {
    std::string name;
    int64_t size = 0;
    uint64_t hash = 0;  // XXH3-64 of the content
  };
  int64_t step = 0;
  std::string result_keys;  // ResultKeysText of the job
  job::ResolvedKeys resolved;
  std::string details_json = "{}";  // an object of the writer's own
  std::vector<FileEntry> files;     // sorted by name
};

// "checkpoint-12"
std::string CheckpointName(int64_t step);

// Reads the files of `directory` back, notes sizes and checksums in `manifest.files` (given empty)
// and writes manifest.json. The caller has written and synced all files. `cancelled`, here and
// below: see common/base/cancel.h.
absl::Status WriteManifest(const std::string& directory, CheckpointManifest manifest,
                           const std::atomic<bool>* cancelled = nullptr);

// DataLoss when the manifest cannot be read or parsed; names the file.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& directory);

// Which checkpoint it is, whatever its path: its step, and a checksum of its keys and its files'.
std::string IdentityOf(const CheckpointManifest& manifest);

// Reads the manifest and every file; DataLoss names the one that is missing, cut or damaged.
absl::StatusOr<CheckpointManifest> VerifyCheckpoint(const std::string& directory,
                                                    const std::atomic<bool>* cancelled = nullptr);
// The same of a path that a user gives. InvalidArgument says what a directory is that is none.
absl::StatusOr<CheckpointManifest> VerifyNamedCheckpoint(const std::string& path);

// Steps of the checkpoint directories there are, newest first; nothing is opened.
std::vector<int64_t> ListCheckpoints(const std::string& output_dir);
// The same of a folder that must be there: as ErrnoStatus, when it cannot be listed.
absl::StatusOr<std::vector<int64_t>> ReadCheckpoints(const std::string& output_dir);

// Removes all but the newest `limit` (0 or less: keeps all), that of `keep_step`, which may be
// older than damaged ones, and the one at `keep_path`, if it is one of them.
absl::Status PruneCheckpoints(const std::string& output_dir, int64_t limit, int64_t keep_step = -1,
                              const std::string& keep_path = "");

}  // namespace harmony::io
