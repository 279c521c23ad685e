#include "coordinator/runner/failure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace harmony::runner {

Verdict VerdictOf(const absl::Status& status, FailedAt at) {
  if (absl::IsAborted(status)) return Verdict::kTryAgain;
  if (at == FailedAt::kArithmetic) return Verdict::kEnd;
  if (at == FailedAt::kSaving) return Verdict::kWait;
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return Verdict::kWait;
    case absl::StatusCode::kNotFound:
      return at == FailedAt::kStart ? Verdict::kEnd : Verdict::kWait;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDataLoss:
      return at == FailedAt::kTraining ? Verdict::kWait : Verdict::kEnd;
    default:
      return Verdict::kEnd;
  }
}

Nanos BackOff::Failed(Nanos now) {
  const Nanos pause = std::min(kFirst * (int64_t{1} << std::min(failures_, 10)), kLongest);
  ++failures_;
  due_ = now + pause;
  return pause;
}

std::string NextTryText(Nanos pause) {
  return absl::StrCat("the next try is in ", FormatDuration(pause), ", or now with `resume`");
}

}  // namespace harmony::runner
