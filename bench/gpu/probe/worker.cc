#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/kernels.h"
#include "bench/gpu/probe/libraries.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr uint64_t kWorkspace = 32 * kMiB;
constexpr uint64_t kMatrix = uint64_t{8192} * 8192 * 2;
constexpr size_t kInFlight = 8;

// The device's memory, filled at random, and what computes on it.
class Loads {
 public:
  explicit Loads(CUstream stream) : stream_(stream) {
    a_ = Random(kMatrix, 1);
    b_ = Random(kMatrix, 2);
    c_ = Random(kMatrix, 3);
    x_ = Random(kGiB, 4);
    y_ = Random(kGiB, 5);
    workspace_ = Random(kWorkspace, 6);
    blocks_ = 8 * Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    missing_ = blas_.Open(stream_, workspace_, kWorkspace);
  }

  const std::string& missing() const { return missing_; }
  const Blas& blas() const { return blas_; }

  // One measured piece of a load: about a millisecond on the devices of 2022 to 2024.
  void Launch(const std::string& load) const {
    const char* error = nullptr;
    if (load == "product_large") {
      error = blas_.Product(c_, a_, b_, 8192, 8192, 8192);
    } else if (load == "product_small") {
      for (int i = 0; i < 8 && error == nullptr; ++i) {
        error = blas_.Product(c_, a_, b_, 2048, 4096, 4096);
      }
    } else if (load == "memory") {
      error = LaunchAverage(y_, x_, kGiB / sizeof(float), stream_);
    } else if (load == "arithmetic") {
      error = LaunchArithmetic(workspace_, blocks_, 32768, stream_);
    } else {
      error = "no such load";
    }
    if (error != nullptr) Fail(load + ": " + error);
  }

 private:
  CUdeviceptr Random(uint64_t bytes, uint32_t seed) const {
    const CUdeviceptr memory = Allocate(bytes, "memory of the worker");
    const char* error = LaunchFill(memory, bytes / 2, seed, stream_);
    if (error != nullptr) Fail(std::string("filling memory: ") + error);
    return memory;
  }

  const CUstream stream_;
  CUdeviceptr a_ = 0, b_ = 0, c_ = 0, x_ = 0, y_ = 0, workspace_ = 0;
  int blocks_ = 0;
  Blas blas_;
  std::string missing_;
};

// Runs a load back to back for `seconds` after a warm-up: the milliseconds of each piece.
std::vector<double> Measure(const Loads& loads, const std::string& load, CUstream stream,
                            double warm_up, double seconds) {
  std::vector<CUevent> events;
  const double begin = NowSeconds();
  size_t first = 0;
  while (NowSeconds() < begin + warm_up + seconds) {
    loads.Launch(load);
    events.push_back(NewEvent());
    Must(Cuda().EventRecord(events.back(), stream), "cuEventRecord");
    while (events.size() > kInFlight && !Done(events[events.size() - 1 - kInFlight])) Nap();
    if (NowSeconds() < begin + warm_up) first = events.size() - 1;
  }
  Must(Cuda().StreamSynchronize(stream), load.c_str());
  std::vector<double> pieces;
  for (size_t i = first; i + 1 < events.size(); ++i) {
    pieces.push_back(MillisecondsBetween(events[i], events[i + 1]));
  }
  for (CUevent event : events) Cuda().EventDestroy(event);
  return pieces;
}

// Copies on a second thread of this process.
class CopyThread {
 public:
  CopyThread(const Copies& copies, uint64_t chunk, double warm_up)
      : thread_([this, copies, chunk, warm_up] {
          UsePrimaryContext();
          PumpPlan plan;
          plan.chunk = chunk;
          plan.warm_up_seconds = warm_up;
          rates_ = Pump(copies, plan, [this] { return stop_.load(); });
        }) {}

  Rates Stop() {
    stop_.store(true);
    thread_.join();
    return rates_;
  }

 private:
  std::atomic<bool> stop_{false};
  Rates rates_;
  std::thread thread_;  // last: it uses the others
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// "run LOAD WARM-UP SECONDS CHUNK COPY-WARM-UP": a chunk of 0 is no copies. LOAD "none" only
// copies.
void AnswerRun(const Loads& loads, CUstream stream, const Copies& copies,
               const std::vector<std::string>& words) {
  const double warm_up = strtod(words[2].c_str(), nullptr);
  const double seconds = strtod(words[3].c_str(), nullptr);
  const uint64_t chunk = strtoull(words[4].c_str(), nullptr, 10);
  std::unique_ptr<CopyThread> thread;
  if (chunk > 0) {
    thread = std::make_unique<CopyThread>(copies, chunk, strtod(words[5].c_str(), nullptr));
  }
  std::vector<double> pieces;
  if (words[1] == "none") {
    Nap(static_cast<int>(seconds * 1e6));
  } else {
    pieces = Measure(loads, words[1], stream, warm_up, seconds);
  }
  const Rates rates = thread == nullptr ? Rates{} : thread->Stop();
  Parent().Send(Format("ran %zu %.6f %.6f %.6f %.6f %.6f", pieces.size(), Mean(pieces),
                       Quantile(pieces, 0.5), Quantile(pieces, 0.99), rates.to_device,
                       rates.from_device));
}

}  // namespace

void RunWorker(const Arguments& arguments) {
  if (arguments.empty()) Fail("a worker needs a size");
  const Copies copies = ReceiveCopies(strtoull(arguments[0].c_str(), nullptr, 10),
                                      DeviceMemory::kRegion, PinnedMemory::kShared);
  const CUstream stream = NewStream();
  const Loads loads(stream);
  Must(Cuda().StreamSynchronize(stream), "filling memory");
  Parent().Send("ready" + (loads.missing().empty()
                               ? Format(" cublas %d ", loads.blas().version()) + loads.blas().path()
                               : " without " + loads.missing()));
  for (Message order = Parent().Receive(); !order.ended; order = Parent().Receive()) {
    const std::vector<std::string> words = Words(order.text);
    if (words.size() != 6 || words[0] != "run") Fail("a worker cannot '" + order.text + "'");
    AnswerRun(loads, stream, copies, words);
  }
}

}  // namespace harmony::bench
