#include "bench/gpu/probe/pump.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/process.h"

namespace harmony::bench {
namespace {

class Lane {
 public:
  Lane(const Copies& copies, const PumpPlan& plan, int depth, bool to_device)
      : to_device_(to_device),
        stream_(to_device ? copies.to_device : copies.from_device),
        device_(copies.device + (to_device ? 0 : copies.half)),
        host_(copies.host + (to_device ? 0 : copies.half)),
        bytes_(copies.half),
        chunk_(plan.chunk),
        events_(static_cast<size_t>(depth)),
        begin_(NewEvent()),
        last_(NewEvent()) {
    for (CUevent& event : events_) event = NewEvent();
  }
  ~Lane() {
    for (CUevent event : events_) Cuda().EventDestroy(event);
    Cuda().EventDestroy(begin_);
    Cuda().EventDestroy(last_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Fill() {
    for (; started_ - ended_ < events_.size(); ++started_) {
      const uint64_t offset = started_ * chunk_ % bytes_;
      if (to_device_) {
        Must(Cuda().MemcpyHtoDAsync(device_ + offset, host_ + offset, chunk_, stream_),
             "cuMemcpyHtoDAsync");
      } else {
        Must(Cuda().MemcpyDtoHAsync(host_ + offset, device_ + offset, chunk_, stream_),
             "cuMemcpyDtoHAsync");
      }
      Must(Cuda().EventRecord(events_[started_ % events_.size()], stream_), "cuEventRecord");
    }
  }

  // Notes what has ended. `measure`: the warm-up is over.
  void Poll(bool measure) {
    while (ended_ < started_ && Done(events_[ended_ % events_.size()])) {
      CUevent& event = events_[ended_ % events_.size()];
      ++ended_;
      if (!measure) continue;
      // Events that bound the measurement leave the ring, so that they are not recorded again.
      std::swap(event, measuring_ ? last_ : begin_);
      if (measuring_) ++measured_;
      measuring_ = true;
    }
  }

  double Rate() const {
    if (measured_ == 0) return 0;
    const double seconds = MillisecondsBetween(begin_, last_) * 1e-3;
    return static_cast<double>(measured_ * chunk_) / seconds * 1e-9;
  }

  void Drain() { Must(Cuda().StreamSynchronize(stream_), "copies"); }

 private:
  const bool to_device_;
  const CUstream stream_;
  const CUdeviceptr device_;
  char* const host_;
  const uint64_t bytes_;
  const uint64_t chunk_;
  std::vector<CUevent> events_;  // of the copies in flight, a ring
  CUevent begin_, last_;
  uint64_t started_ = 0, ended_ = 0, measured_ = 0;
  bool measuring_ = false;
};

int DepthOf(const PumpPlan& plan) {
  if (plan.depth > 0) return plan.depth;
  return static_cast<int>(std::clamp<uint64_t>(64 * kMiB / plan.chunk, 4, 32));
}

}  // namespace

Rates Pump(const Copies& copies, const PumpPlan& plan, const std::function<bool()>& stop) {
  Lane down(copies, plan, DepthOf(plan), true);
  Lane up(copies, plan, DepthOf(plan), false);
  const double warm = NowSeconds() + plan.warm_up_seconds;
  do {
    const bool measure = NowSeconds() >= warm;
    if (plan.directions & kToDevice) {
      down.Poll(measure);
      down.Fill();
    }
    if (plan.directions & kFromDevice) {
      up.Poll(measure);
      up.Fill();
    }
    Nap();
  } while (!stop());
  const Rates rates = {down.Rate(), up.Rate()};
  down.Drain();
  up.Drain();
  return rates;
}

Rates PumpFor(const Copies& copies, const PumpPlan& plan, double seconds) {
  const double end = NowSeconds() + plan.warm_up_seconds + seconds;
  return Pump(copies, plan, [end] { return NowSeconds() >= end; });
}

}  // namespace harmony::bench
