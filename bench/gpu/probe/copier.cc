#include <cstdlib>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr uint64_t kSmallCopy = 64;

enum class Waiting { kPolling, kPollingWithNaps, kBlocking };

// Microseconds of one small copy on an idle stream: until the driver has it, and until the host
// knows that it is over.
struct Latencies {
  std::vector<double> enqueued, known;
};

Latencies MeasureLatencies(const Copies& copies, bool to_device, Waiting waiting, int count) {
  const CUevent event =
      NewEvent(waiting == Waiting::kBlocking ? CU_EVENT_BLOCKING_SYNC : CU_EVENT_DEFAULT);
  const CUstream stream = to_device ? copies.to_device : copies.from_device;
  const int warm_up = count / 10;
  Latencies latencies;
  for (int i = 0; i < warm_up + count; ++i) {
    const double begin = NowSeconds();
    Must(to_device ? Cuda().MemcpyHtoDAsync(copies.device, copies.host, kSmallCopy, stream)
                   : Cuda().MemcpyDtoHAsync(copies.host + copies.half, copies.device + copies.half,
                                            kSmallCopy, stream),
         "a small copy");
    Must(Cuda().EventRecord(event, stream), "cuEventRecord");
    const double enqueued = NowSeconds();
    if (waiting == Waiting::kBlocking) {
      Must(Cuda().EventSynchronize(event), "cuEventSynchronize");
    } else {
      while (!Done(event)) {
        if (waiting == Waiting::kPollingWithNaps) Nap();
      }
    }
    if (i < warm_up) continue;
    latencies.enqueued.push_back((enqueued - begin) * 1e6);
    latencies.known.push_back((NowSeconds() - begin) * 1e6);
  }
  Cuda().EventDestroy(event);
  return latencies;
}

// "latency DIRECTION WAITING COUNT", the first two as numbers.
void AnswerLatency(const Copies& copies, const std::vector<double>& order) {
  const auto waiting = static_cast<Waiting>(static_cast<int>(order[1]));
  if (waiting == Waiting::kBlocking && Cuda().EventSynchronize == nullptr) {
    Parent().Send("latency lacking");
    return;
  }
  const Latencies found = MeasureLatencies(copies, static_cast<int>(order[0]) == kToDevice, waiting,
                                           static_cast<int>(order[2]));
  Parent().Send(Format("latency %.3f %.3f %.3f %.3f", Quantile(found.enqueued, 0.5),
                       Quantile(found.known, 0.5), Quantile(found.known, 0.1),
                       Quantile(found.known, 0.99)));
}

// Pins and unpins chunks until the next message: does that hold up other processes' work?
void PinUntilTold() {
  char* memory = NewPinnedMemory(kPinChunk);
  Unpin(memory, kPinChunk);
  int pins = 0;
  for (; !Parent().Readable(); ++pins) {
    Pin(memory, kPinChunk);
    Unpin(memory, kPinChunk);
  }
  Parent().Receive();
  UnmapHostMemory(memory, kPinChunk);
  Parent().Send(Format("pins %d", pins));
}

void SendRates(const Rates& rates) {
  Parent().Send(Format("rates %.6f %.6f", rates.to_device, rates.from_device));
}

PumpPlan PlanOf(const std::vector<double>& order) {
  PumpPlan plan;
  plan.chunk = static_cast<uint64_t>(order[0]);
  plan.directions = static_cast<Directions>(static_cast<int>(order[1]));
  return plan;
}

}  // namespace

void RunCopier(const Arguments& arguments) {
  if (arguments.size() != 3) Fail("a copier needs a size and two sorts of memory");
  const Copies copies =
      ReceiveCopies(strtoull(arguments[0].c_str(), nullptr, 10),
                    arguments[1] == "plain" ? DeviceMemory::kPlain : DeviceMemory::kRegion,
                    arguments[2] == "plain" ? PinnedMemory::kPlain : PinnedMemory::kShared);
  Parent().Send("ready");
  for (Message order = Parent().Receive(); !order.ended; order = Parent().Receive()) {
    const size_t space = order.text.find(' ');
    const std::string what = order.text.substr(0, space);
    const std::vector<double> numbers =
        Numbers(space == std::string::npos ? "" : order.text.substr(space), 3);
    if (what == "copy") {  // CHUNK DIRECTIONS SECONDS
      SendRates(PumpFor(copies, PlanOf(numbers), numbers[2]));
    } else if (what == "start") {  // CHUNK DIRECTIONS DEPTH WARM-UP, until the next message
      PumpPlan plan = PlanOf(numbers);
      plan.depth = static_cast<int>(numbers[2]);
      if (numbers.size() > 3) plan.warm_up_seconds = numbers[3];
      const Rates rates = Pump(copies, plan, [] { return Parent().Readable(); });
      if (Parent().Receive().ended) return;
      SendRates(rates);
    } else if (what == "pin") {
      PinUntilTold();
    } else if (what == "latency") {
      AnswerLatency(copies, numbers);
    } else {
      Fail("a copier cannot '" + order.text + "'");
    }
  }
}

}  // namespace harmony::bench
