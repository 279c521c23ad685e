#include "common/cuda/context.h"

#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace harmony::cuda {
namespace {

// How long a copy is asked after without a pause, and the pauses after that. Large copies take
// milliseconds: a pause of theirs is 1% of one of 64 MiB.
constexpr Nanos kSpin(50'000);
constexpr std::chrono::microseconds kPause(20);

absl::StatusOr<CUdevice> DeviceAt(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&device, ordinal), "opening a GPU"));
  return device;
}

}  // namespace

absl::StatusOr<Context> Context::Create(const Driver& driver, int ordinal) {
  HARMONY_ASSIGN_OR_RETURN(const CUdevice device, DeviceAt(driver, ordinal));
  CUcontext context = nullptr;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.CtxCreate(&context, nullptr, 0, device), "making a context on a GPU"));
  return Context(driver, context);
}

absl::StatusOr<Context> Context::Primary(const Driver& driver, int ordinal) {
  HARMONY_ASSIGN_OR_RETURN(const CUdevice device, DeviceAt(driver, ordinal));
  CUcontext primary = nullptr;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.DevicePrimaryCtxRetain(&primary, device), "sharing a GPU's context"));
  Context context(driver, primary);
  context.retained_ = device;
  HARMONY_RETURN_IF_ERROR(context.MakeCurrent());
  return context;
}

Context::Context(Context&& other) noexcept
    : driver_(other.driver_),
      context_(std::exchange(other.context_, nullptr)),
      retained_(other.retained_) {}

Context::~Context() {
  if (context_ == nullptr) return;
  if (retained_) {
    driver_->DevicePrimaryCtxRelease(*retained_);
  } else {
    driver_->CtxDestroy(context_);
  }
}

absl::Status Context::MakeCurrent() const {
  return driver_->Check(driver_->CtxSetCurrent(context_), "entering a GPU's context");
}

absl::StatusOr<CopyQueue> CopyQueue::Create(const Driver& driver) {
  CopyQueue queue(driver);
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.StreamCreate(&queue.stream_, CU_STREAM_NON_BLOCKING), "making a stream"));
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.EventCreate(&queue.event_, CU_EVENT_DISABLE_TIMING), "making an event"));
  return queue;
}

CopyQueue::CopyQueue(CopyQueue&& other) noexcept
    : driver_(other.driver_),
      stream_(std::exchange(other.stream_, nullptr)),
      event_(std::exchange(other.event_, nullptr)) {}

CopyQueue::~CopyQueue() {
  if (event_ != nullptr) driver_->EventDestroy(event_);
  if (stream_ != nullptr) driver_->StreamDestroy(stream_);
}

absl::Status CopyQueue::Finish() {
  const absl::Status recorded =
      driver_->Check(driver_->EventRecord(event_, stream_), "ending a copy");
  if (!recorded.ok()) {
    // What was queued may go on: nobody may use its memory before it is known not to.
    const absl::Status over = driver_->Check(driver_->StreamSynchronize(stream_), "ending copies");
    return over.ok() ? recorded : absl::UnavailableError(over.message());
  }
  const Nanos start = MonotonicClock().Now();
  while (true) {
    const CUresult result = driver_->EventQuery(event_);
    if (result != CUDA_ERROR_NOT_READY) return driver_->Check(result, "a copy");
    if (MonotonicClock().Now() - start > kSpin) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace harmony::cuda
