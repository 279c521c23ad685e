#include <atomic>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

// A word of a pinned page, and the device's address of it.
struct Cell {
  std::atomic<uint64_t>* host;
  CUdeviceptr device;
};

Cell CellAt(char* memory) {
  CUdeviceptr device = 0;
  Must(Cuda().MemHostGetDevicePointer(&device, memory, 0), "cuMemHostGetDevicePointer");
  // The memory is a shared mapping: the device's writes reach it as another thread's would.
  auto* const host = reinterpret_cast<std::atomic<uint64_t>*>(memory);
  host->store(0);
  return {host, device};
}

}  // namespace

void RunWaits() {
  UsePrimaryContext();
  const Driver& cuda = Cuda();
  if (cuda.StreamWaitValue64 == nullptr || cuda.StreamWriteValue64 == nullptr ||
      cuda.MemHostGetDevicePointer == nullptr) {
    ReportText("skipped", "the driver lacks waits of streams");
    return;
  }
  char* memory = NewPinnedMemory(kMiB);
  const Cell gate = CellAt(memory), done = CellAt(memory + 4096);
  const CUstream stream = NewStream();
  const CUevent event = NewEvent();
  const int count = TheSettings().quick ? 200 : 2000;
  std::vector<double> enqueue, released, written;
  for (int i = 1; i <= count; ++i) {
    const uint64_t value = static_cast<uint64_t>(i);
    const double begin = NowSeconds();
    Must(cuda.StreamWaitValue64(stream, gate.device, value, CU_STREAM_WAIT_VALUE_GEQ),
         "cuStreamWaitValue64");
    enqueue.push_back((NowSeconds() - begin) * 1e6);
    Must(cuda.StreamWriteValue64(stream, done.device, value, CU_STREAM_WRITE_VALUE_DEFAULT),
         "cuStreamWriteValue64");
    Must(cuda.EventRecord(event, stream), "cuEventRecord");
    // The stream waits by now.
    Nap(100);
    const double raised = NowSeconds();
    gate.host->store(value);
    while (done.host->load() < value) {
    }
    written.push_back((NowSeconds() - raised) * 1e6);
    while (!Done(event)) {
    }
    released.push_back((NowSeconds() - raised) * 1e6);
  }
  ReportSpread("enqueue_a_wait", SpreadOf(enqueue), "us");
  ReportSpread("host_raises_until_device_wrote_back", SpreadOf(written), "us");
  ReportSpread("host_raises_until_event_is_seen", SpreadOf(released), "us");
  ReportNumber("until_device_wrote_back_99th", Quantile(written, 0.99), "us");
}

}  // namespace harmony::bench
