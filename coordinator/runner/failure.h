#pragma once

// What becomes of a job when something fails, and when it is tried again: the one place that
// decides, for commands and for set-ups. PURE.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/units.h"

namespace harmony::runner {

enum class Verdict {
  kTryAgain,  // at once, in a new generation: the command's own generation was over
  // Later: something outside is missing, such as room on a disk, a file, descriptors. The job keeps
  // all that it has in the segment meanwhile.
  kWait,
  kEnd,  // the job's arithmetic or description, or a bug: it would fail again
};

// What failed.
enum class FailedAt {
  kArithmetic,  // what works on memory alone
  kStart,       // what opens or reads files before anything has been trained
  kBegin,       // the same of a job that was admitted before: its files were there then
  kTraining,    // what needs files, while the segment holds what was trained
  kSaving,      // a checkpoint, which takes nothing from the job, whatever is wrong with it
};

// Codes are those of common/base/status.h; errors of files have them from ErrnoStatus. What is
// short (ResourceExhausted) or does not answer (Unavailable) is worth waiting for at any time; a
// file that is missing where it was there once, as on a disk that is not mounted yet; one that is
// changed or not permitted only once there is something to lose: before that it is an error of the
// job's description.
Verdict VerdictOf(const absl::Status& status, FailedAt at);

// When what failed is tried again: after 1 s, then ever later, at most a minute.
class BackOff {
 public:
  static constexpr Nanos kFirst = Seconds(1), kLongest = Seconds(60);

  // Returns the pause before the next try.
  Nanos Failed(Nanos now);
  void Succeeded() { *this = BackOff(); }
  // The next try is due at once.
  void Hurry() { due_.reset(); }

  // The last try failed.
  bool failing() const { return failures_ > 0; }
  bool Due(Nanos now) const { return failing() && (!due_ || now >= *due_); }

 private:
  int failures_ = 0;  // in a row
  std::optional<Nanos> due_;
};

// What a job's log says of a pause before a next try that `resume` makes at once.
std::string NextTryText(Nanos pause);
// Behind the reason for which a job cannot go on; of one that holds steps the latter.
inline constexpr char kWaits[] = ": the job waits";
inline constexpr char kEndsAndKeeps[] = ": the job ends; what it has trained is saved before";
inline constexpr char kEndsWithOneCheckpoint[] =
    "what was trained since the last checkpoint is not saved, for it would take that one's place "
    "(save_total_limit: 1)";
inline constexpr char kEndsWithoutSaving[] =
    "what was trained since the last checkpoint could not be saved: the step that failed has "
    "updated "
    "some tensors already";
inline constexpr char kWaitsAndKeeps[] = ": the job waits and keeps what it has trained";

}  // namespace harmony::runner
