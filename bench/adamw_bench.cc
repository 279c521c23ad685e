// AdamW updates per second: the plain loop and the crash-consistent one on a shared segment, of
// fp32 parameters and of fp32 masters that write bf16 weights as well, with gradients of fp32 and
// of bf16, for each instruction set, beside PyTorch's fused CPU AdamW (in turns:
// bench/adamw_pytorch.py
// --against build/bin/adamw_bench).
//
//   build/bin/adamw_bench [--parameters 67108864] [--threads 2] [--rounds 7] [--gradients 1]
//
// A line each: name, parameters/s (median, spread), GB/s (24 bytes a parameter: w, m, v read and
// written; 4 or 2 for each gradient that is read; 2 for a bf16 weight that is written). Then the
// rate in bytes of each of bf16 beside that of fp32, round by round in turns.

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/io/float_convert.h"
#include "common/ipc/segment.h"
#include "tests/support/update_block.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/protected_update.h"

namespace harmony::bench {
namespace {

struct Options {
  int64_t parameters = 64 << 20;
  int threads = 2;
  int rounds = 7;
  int gradients = 1;  // replicas, added up in the loop
};

// What is updated: types of the weights that layers read, and of gradients.
struct Form {
  const char* name;
  DType weights, gradients;
};
constexpr std::array<Form, 3> kForms = {{{"fp32", DType::kF32, DType::kF32},
                                         {"bf16", DType::kBF16, DType::kF32},
                                         {"bf16, bf16 gradients", DType::kBF16, DType::kBF16}}};

model::ModelSpec MakeModel(int64_t parameters, int gradients, const Form& form) {
  model::ModelSpec model;
  model::ParamBlock block;
  block.name = "bench";
  model::TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = {parameters};
  tensor.weight_decay = true;
  tensor.weight.dtype = form.weights;
  model::AddTensor(block, std::move(tensor));
  for (int reference = 0; reference < gradients; ++reference) block.references.push_back(reference);
  model.blocks.push_back(block);
  model.references.resize(gradients);
  model.layers.resize(1);
  model::StoreGradientsAs(form.gradients, model);
  return model;
}

class Bench {
 public:
  Bench(const Options& options, const Form& form)
      : options_(options),
        form_(form),
        model_(MakeModel(options.parameters, options.gradients, form)),
        layout_(model_, 1),
        pool_(options.threads) {}

  absl::Status Prepare() {
    ipc::SegmentJob job;
    job.id = "bench";
    job.record_count = layout_.size();
    job.cursor_count = ipc::CursorCount(model_);
    job.persistent = command::PersistentBytes(model_, 2);
    job.extent = job.persistent + gradient_size() * options_.gradients;
    auto segment = ipc::Segment::Create(job.extent + MiB(64));
    if (!segment.ok()) return segment.status();
    segment_ = std::make_unique<ipc::Segment>(*std::move(segment));
    if (absl::Status status = segment_->AllocateJob(job); !status.ok()) return status;
    for (int reference = 0; reference < options_.gradients; ++reference) {
      gradients_.push_back(segment_->Arena(GradientOffset(reference)));
      records_.push_back(layout_.IndexOf({command::ObjectKind::kGradient, reference, 0}));
    }
    state_ = worker::StateInSegment(*segment_, model_, 2, 0);
    auto* const values = block().has_masters ? state_.masters : static_cast<float*>(state_.weights);
    pool_.ParallelFor(ipc::UpdateChunks(options_.parameters), [&](int64_t chunk) {
      const int64_t size = static_cast<int64_t>(ipc::kUpdateChunkElements);
      for (int64_t i = chunk * size; i < std::min(options_.parameters, (chunk + 1) * size); ++i) {
        values[i] = 0.02f * static_cast<float>(i % 101 - 50);
        for (int reference = 0; reference < options_.gradients; ++reference) {
          SetGradient(reference, i, 1e-3f * static_cast<float>(i % 13 - 6));
        }
        state_.m[i] = state_.v[i] = 0;
      }
    });
    return absl::OkStatus();
  }

  // Seconds of one step.
  double Time(worker::Isa isa, bool is_protected) {
    ++step_;
    if (is_protected) PublishAt(static_cast<uint64_t>(step_ - 1));
    const Nanos start = MonotonicClock().Now();
    Step(isa, is_protected);
    return (MonotonicClock().Now() - start).seconds();
  }

  // That the update of a parameter reads and writes.
  int64_t bytes() const {
    return 24 + SizeOf(form_.gradients).count() * options_.gradients +
           (block().has_masters ? 2 : 0);
  }
  const Form& form() const { return form_; }

 private:
  const model::ParamBlock& block() const { return model_.blocks[0]; }
  Bytes gradient_size() const { return block().gradient_bytes.AlignUp(kSlotAlignment); }
  Bytes GradientOffset(int reference) const {
    return command::PersistentBytes(model_, 2) + gradient_size() * reference;
  }
  void SetGradient(int reference, int64_t i, float value) {
    std::byte* const at = segment_->Arena(GradientOffset(reference));
    if (form_.gradients == DType::kBF16) {
      reinterpret_cast<uint16_t*>(at)[i] = io::Bf16FromFloat(value);
    } else {
      reinterpret_cast<float*>(at)[i] = value;
    }
  }
  void PublishAt(uint64_t version) {
    for (int part = 0; part < 3; ++part) {
      const command::ObjectKey key{static_cast<command::ObjectKind>(part), 0, 0};
      segment_->Publish(layout_.IndexOf(key),
                        {key, command::PersistentOffset(model_, key),
                         part == 0 ? block().weight_bytes : block().moment_bytes, version,
                         command::ObjectState::kClean});
    }
    for (int reference = 0; reference < options_.gradients; ++reference) {
      const command::ObjectKey key{command::ObjectKind::kGradient, reference, 0};
      segment_->Publish(layout_.IndexOf(key),
                        {key, GradientOffset(reference), block().gradient_bytes, version + 1,
                         command::ObjectState::kClean});
    }
  }
  void Step(worker::Isa isa, bool is_protected) {
    const worker::StepHyper hyper{step_, 1e-3, 1.0};
    if (!is_protected) {
      testing_support::UpdateBlock(model_.blocks[0], settings_, hyper, state_, gradients_, pool_,
                                   isa);
      return;
    }
    const absl::Status status = worker::UpdateObject(*segment_, model_, layout_, settings_,
                                                     {0, hyper, records_}, pool_, isa);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }

  const Options options_;
  const Form form_;
  const model::ModelSpec model_;
  const command::ObjectTableLayout layout_;
  const worker::OptimizerSettings settings_{job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8};
  worker::ThreadPool pool_;
  std::unique_ptr<ipc::Segment> segment_;
  worker::BlockGradient gradients_;
  std::vector<int> records_;
  worker::BlockState state_;
  int64_t step_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const Options& options, const std::string& name, const std::vector<double>& seconds,
           int64_t bytes) {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const auto parameters = static_cast<double>(options.parameters);
  const double rate = parameters / Median(seconds);
  std::printf("%-38s %.4g parameters/s (%.4g .. %.4g), %.1f GB/s, %d threads\n", name.c_str(), rate,
              parameters / *most, parameters / *least, rate * static_cast<double>(bytes) * 1e-9,
              options.threads);
  std::fflush(stdout);
}

// All forms in turns, so that what else the machine does hits each. The first is the yardstick.
void Run(const Options& options, std::deque<Bench>& forms, worker::Isa isa, bool is_protected) {
  std::vector<std::vector<double>> seconds(forms.size()), ratios(forms.size());
  for (int round = -1; round < options.rounds; ++round) {  // one to warm up
    double first = 0;
    for (size_t i = 0; i < forms.size(); ++i) {
      const double one = forms[i].Time(isa, is_protected);
      if (i == 0) first = one;
      if (round < 0) continue;
      seconds[i].push_back(one);
      ratios[i].push_back(first / one * static_cast<double>(forms[i].bytes()) /
                          static_cast<double>(forms[0].bytes()));
    }
  }
  for (size_t i = 0; i < forms.size(); ++i) {
    Print(options,
          absl::StrCat(is_protected ? "protected " : "plain ", worker::ToString(isa), " ",
                       forms[i].form().name),
          seconds[i], forms[i].bytes());
    if (i > 0) std::printf("%38s %.3f of the rate of fp32, by bytes\n", "", Median(ratios[i]));
  }
}

int Main(int argc, char** argv) {
  Options options;
  bool best_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--best") {
      best_only = true;
      continue;
    }
    const bool ok = (flag == "--parameters" && absl::SimpleAtoi(value, &options.parameters)) ||
                    (flag == "--threads" && absl::SimpleAtoi(value, &options.threads)) ||
                    (flag == "--rounds" && absl::SimpleAtoi(value, &options.rounds)) ||
                    (flag == "--gradients" && absl::SimpleAtoi(value, &options.gradients));
    if (!ok || options.parameters < 1 || options.threads < 1 || options.rounds < 1 ||
        options.gradients < 1) {
      std::fprintf(stderr,
                   "usage: adamw_bench [--best] [--parameters N] [--threads N]"
                   " [--rounds N] [--gradients N]\n");
      return 2;
    }
    ++i;
  }
  std::deque<Bench> forms;
  for (const Form& form : kForms) {
    if (const absl::Status status = forms.emplace_back(options, form).Prepare(); !status.ok()) {
      std::fprintf(stderr, "adamw_bench: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  for (const worker::Isa isa : {worker::Isa::kAvx512, worker::Isa::kAvx2, worker::Isa::kScalar}) {
    if (!worker::IsaSupported(isa) || (best_only && isa != worker::BestIsa())) continue;
    for (const bool is_protected : {false, true}) Run(options, forms, isa, is_protected);
  }
  return 0;
}

}  // namespace
}  // namespace harmony::bench

int main(int argc, char** argv) { return harmony::bench::Main(argc, argv); }
