#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "client/progress/output.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {

// Shows a job's progress on standard output. One thread.
class ProgressView {
 public:
  explicit ProgressView(int interrupt) : output_(interrupt) {}
  virtual ~ProgressView() = default;
  // A snapshot; its messages are shown too.
  virtual void Show(const v1::Progress& progress) = 0;
  virtual void Message(absl::string_view text) = 0;
  // From now on nothing waits for who reads it.
  void Hurry() { output_.Hurry(); }

 protected:
  void Write(absl::string_view text) { output_.Write(text); }

 private:
  Output output_;
};

// On a terminal a frame redrawn in place, messages scrolling above it; else a line for each logged
// step; with `json` one JSON object a line: {"type": "progress", ...}, {"type": "message", ...}.
// `logging_steps`: every how many steps the plain view prints a line. `interrupt`: see Output.
std::unique_ptr<ProgressView> MakeProgressView(bool json, int64_t logging_steps,
                                               int interrupt = -1);

// The `logging_steps` of a job file, overridden by `--set` values; 1 when it has none or cannot be
// read (the coordinator is the one to complain).
int64_t LoggingStepsOf(const std::string& job_yaml, const std::vector<std::string>& overrides);

}  // namespace harmony::client
