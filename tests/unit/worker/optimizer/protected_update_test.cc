#include "worker/optimizer/protected_update.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/io/float_convert.h"
#include "tests/support/sanitized.h"
#include "tests/support/trim_block.h"
#include "tests/support/update_block.h"

namespace harmony::worker {
namespace {

using Floats = std::vector<float>;
using Shapes = std::vector<std::vector<int64_t>>;

constexpr uint64_t kVersion = 4;  // the update leads from 3 to 4

// One layer with one block that has so many gradients, each of a reference of its own. The types
// are those of the weights, over and over.
model::ModelSpec MakeModel(const std::vector<int64_t>& tensor_sizes, int gradients,
                           const std::vector<DType>& types = {DType::kF32},
                           DType stored_gradient = DType::kF32) {
  model::ModelSpec model;
  model::ParamBlock block;
  block.name = "layer.0";
  for (size_t i = 0; i < tensor_sizes.size(); ++i) {
    model::TensorSpec tensor;
    tensor.name = absl::StrCat("t", i);
    tensor.shape = {tensor_sizes[i]};
    tensor.weight_decay = i % 2 == 0;
    tensor.weight.dtype = types[i % types.size()];
    model::AddTensor(block, std::move(tensor));
  }
  testing_support::TrimBlock(block);
  for (int reference = 0; reference < gradients; ++reference) block.references.push_back(reference);
  model.blocks.push_back(block);
  model.references.resize(static_cast<size_t>(gradients));
  model.layers.resize(1);
  if (stored_gradient != DType::kF32) model::StoreGradientsAs(stored_gradient, model);
  return model;
}

OptimizerSettings Settings(job::OptimizerKind kind, double momentum = 0, bool nesterov = false) {
  job::JobSpec job;
  job.optim = kind;
  job.momentum = momentum;
  job.nesterov = nesterov;
  return SettingsOf(job);
}
const OptimizerSettings kAdamW = Settings(job::OptimizerKind::kAdamW);
const OptimizerSettings kSgd = Settings(job::OptimizerKind::kSgd);
const OptimizerSettings kMomentum = Settings(job::OptimizerKind::kSgd, 0.9);
const OptimizerSettings kNesterov = Settings(job::OptimizerKind::kSgd, 0.9, true);

// A job in a small segment: parameter and moments at version 3, gradients at 4.
class Arena {
 public:
  Arena(const model::ModelSpec& model, const OptimizerSettings& settings)
      : model_(model), layout_(model, 1), settings_(settings) {
    const Bytes persistent = command::PersistentBytes(model_, settings.moments);
    const Bytes gradient = block().gradient_bytes.AlignUp(kSlotAlignment);
    ipc::SegmentJob job;
    job.id = "test";
    job.record_count = layout_.size();
    job.cursor_count = ipc::CursorCount(model_);
    job.persistent = persistent;
    job.extent = persistent + gradient * static_cast<int64_t>(model_.references.size());
    auto segment = ipc::Segment::Create(job.extent + MiB(4));
    EXPECT_TRUE(segment.ok()) << segment.status();
    segment_ = std::make_unique<ipc::Segment>(*std::move(segment));
    EXPECT_TRUE(segment_->AllocateJob(job).ok());
    for (int part = 0; part <= settings.moments; ++part) {
      const command::ObjectKey key{static_cast<command::ObjectKind>(part), 0, 0};
      const Bytes size = part == 0 ? block().weight_bytes : block().moment_bytes;
      if (part > 0 || !block().has_masters)
        Fill(Offset(part), static_cast<uint64_t>(part), part == 2);
      Publish(key, Offset(part), size, kVersion - 1);
    }
    if (block().has_masters) FillMasters();
    for (int reference = static_cast<int>(model_.references.size()) - 1; reference >= 0;
         --reference) {
      const command::ObjectKey key{command::ObjectKind::kGradient, reference, 0};
      FillGradient(persistent + gradient * reference, 10 + static_cast<uint64_t>(reference));
      Publish(key, persistent + gradient * reference, block().gradient_bytes, kVersion);
      gradients_.push_back(layout_.IndexOf(key));
    }
  }

  absl::Status Update(int threads, Isa isa) {
    ThreadPool pool(threads);
    ProtectedUpdate update;
    update.hyper = {static_cast<int64_t>(kVersion), 1e-3, 0.7};
    update.gradient_records = gradients_;
    return UpdateObject(*segment_, model_, layout_, settings_, update, pool, isa);
  }

  // What Update must lead to, computed without protection on a copy.
  std::vector<Floats> Expected() const {
    std::vector<Floats> state = State();
    ThreadPool pool(1);
    const auto gradient = GradientFromRecords(*segment_, block(), gradients_, kVersion);
    EXPECT_TRUE(gradient.ok()) << gradient.status();
    const auto moment = [&](int i) { return i <= settings_.moments ? state[i].data() : nullptr; };
    testing_support::UpdateBlock(block(), settings_, {static_cast<int64_t>(kVersion), 1e-3, 0.7},
                                 {state[0].data(), moment(1), moment(2), state.back().data()},
                                 *gradient, pool, Isa::kScalar);
    return state;
  }

  // Weights and moments and, at the end, masters, where there are some.
  std::vector<Floats> State() const {
    std::vector<Floats> result;
    for (int part = 0; part <= settings_.moments; ++part) {
      const Bytes size = part == 0 ? block().weight_bytes : block().moment_bytes;
      result.push_back(Copy(Offset(part), size));
    }
    if (block().has_masters) {
      result.push_back(Copy(MasterOffset(), block().master_bytes()));
    }
    return result;
  }

  command::ObjectView Record(int part) const {
    return *segment_->ReadRecord(layout_.IndexOf({static_cast<command::ObjectKind>(part), 0, 0}));
  }
  // The whole segment's bytes as they are, e.g. at the death of a writer.
  void CopyFrom(const Arena& other) {
    const ipc::SegmentConstants& c = segment_->constants();
    const auto copy = [&](uint64_t offset, uint64_t bytes) {
      std::memcpy(Base() + offset, other.Base() + offset, bytes);
    };
    copy(c.records.offset, static_cast<size_t>(layout_.size()) * sizeof(ipc::ObjectRecord));
    copy(c.cursors.offset,
         static_cast<size_t>(ipc::CursorCount(model_)) * sizeof(ipc::UpdateCursor));
    copy(c.data.offset, static_cast<size_t>(segment_->ReadJob()->extent.count()));
  }
  std::byte* Base() const { return segment_->Arena(Bytes(0)) - segment_->constants().data.offset; }
  const model::ParamBlock& block() const { return model_.blocks[0]; }
  int moments() const { return settings_.moments; }
  BlockGradient Gradient() const {
    return *GradientFromRecords(*segment_, block(), gradients_, kVersion);
  }
  // The same number at a tensor's element of all of them.
  void PutGradients(size_t tensor, int64_t element, float x) {
    for (const int record : gradients_) {
      PutGradient(segment_->ReadRecord(record)->offset, block().tensors[tensor], element, x);
    }
  }
  void SwapGradients(size_t a, size_t b) { std::swap(gradients_[a], gradients_[b]); }
  ipc::Segment& segment() { return *segment_; }
  const command::ObjectTableLayout& layout() const { return layout_; }

 private:
  Bytes Offset(int part) const {
    return command::PersistentOffset(model_, {static_cast<command::ObjectKind>(part), 0, 0});
  }
  Bytes MasterOffset() const { return command::MasterOffset(model_, settings_.moments, 0); }
  // What lies there, whatever its type.
  Floats Copy(Bytes offset, Bytes size) const {
    Floats copy(static_cast<size_t>((size.count() + 3) / 4));
    std::memcpy(copy.data(), segment_->Arena(offset), static_cast<size_t>(size.count()));
    return copy;
  }
  // As an initialisation does; a tensor without a master begins at zero.
  void FillMasters() {
    Fill(MasterOffset(), 77, false);
    RoundMasters(block(), {segment_->Arena(Offset(0)), nullptr, nullptr,
                           reinterpret_cast<float*>(segment_->Arena(MasterOffset()))});
  }
  void FillGradient(Bytes offset, uint64_t seed) {
    for (const model::TensorSpec& tensor : block().tensors) {
      for (int64_t i = 0; i < tensor.elements; ++i) {
        PutGradient(offset, tensor, i, PhiloxNormal(seed, static_cast<uint64_t>(i), 0)[0] * 0.1f);
      }
    }
  }
  void PutGradient(Bytes offset, const model::TensorSpec& tensor, int64_t i, float x) {
    std::byte* const at = segment_->Arena(offset + tensor.gradient.offset);
    if (tensor.gradient.dtype == DType::kBF16) {
      reinterpret_cast<uint16_t*>(at)[i] = io::Bf16FromFloat(x);
    } else {
      reinterpret_cast<float*>(at)[i] = x;
    }
  }
  void Fill(Bytes offset, uint64_t seed, bool positive) {
    float* data = reinterpret_cast<float*>(segment_->Arena(offset));
    for (int64_t i = 0; i < block().elements(); ++i) {
      const float x = PhiloxNormal(seed, static_cast<uint64_t>(i), 0)[0] * 0.1f;
      data[i] = positive ? x * x : x;
    }
  }
  void Publish(const command::ObjectKey& key, Bytes offset, Bytes size, uint64_t version) {
    segment_->Publish(layout_.IndexOf(key),
                      {key, offset, size, version, command::ObjectState::kClean});
  }

  const model::ModelSpec model_;
  const command::ObjectTableLayout layout_;
  const OptimizerSettings settings_;
  std::unique_ptr<ipc::Segment> segment_;
  std::vector<int> gradients_;
};

void ExpectDone(const Arena& arena, const std::vector<Floats>& expected, const std::string& where) {
  const std::vector<Floats> state = arena.State();
  for (size_t part = 0; part < state.size(); ++part) {
    ASSERT_EQ(
        std::memcmp(state[part].data(), expected[part].data(), state[part].size() * sizeof(float)),
        0)
        << where << " part " << part;
    if (static_cast<int>(part) > arena.moments()) continue;  // the parameter's record covers them
    const command::ObjectView view = arena.Record(static_cast<int>(part));
    ASSERT_EQ(view.state, command::ObjectState::kClean) << where;
    ASSERT_EQ(view.version, kVersion) << where;
  }
}

class ProtectedUpdateTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam())) GTEST_SKIP() << "not on this machine";
  }
};

TEST_P(ProtectedUpdateTest, SameBitsAsWithoutProtection) {
  for (const OptimizerSettings& settings : {kAdamW, kSgd, kMomentum, kNesterov}) {
    for (const int gradients : {1, 2, 3, 4, 8}) {
      for (const auto& sizes : Shapes{{3}, {16}, {1000, 7, 33}, {262144, 3, 300001}}) {
        // How many ranges are updated depends on neither gradients nor, below, the optimizer.
        if (sizes.front() > 1000 && gradients != 2) continue;
        Arena arena(MakeModel(sizes, gradients), settings);
        const auto expected = arena.Expected();
        ASSERT_TRUE(arena.Update(2, GetParam()).ok());
        ExpectDone(arena, expected, "first");
        ASSERT_TRUE(arena.Update(1, GetParam()).ok()) << "a second call does nothing";
        ExpectDone(arena, expected, "second");
      }
    }
  }
}

const std::vector<DType> kBf16 = {DType::kBF16}, kMixed = {DType::kBF16, DType::kF32};

TEST_P(ProtectedUpdateTest, WorkingCopiesAreTheRoundedMasters) {
  for (const OptimizerSettings& settings : {kAdamW, kSgd, kNesterov}) {
    for (const auto& [types, stored] : {std::pair(kBf16, DType::kF32),
                                        {kMixed, DType::kF32},
                                        {kBf16, DType::kBF16},
                                        {kMixed, DType::kBF16}}) {
      for (const auto& sizes : Shapes{{3}, {1000, 7, 33, 129}, {262144, 3, 300001}}) {
        if (sizes.front() > 1000 && settings.kind != job::OptimizerKind::kAdamW) continue;
        Arena arena(MakeModel(sizes, 2, types, stored), settings);
        const auto expected = arena.Expected();
        ASSERT_TRUE(arena.Update(2, GetParam()).ok());
        ExpectDone(arena, expected, "first");
        std::vector<Floats> rounded = arena.State();
        RoundMasters(arena.block(), {rounded[0].data(), nullptr, nullptr, rounded.back().data()});
        ExpectDone(arena, rounded, "rounded");
      }
    }
  }
}

// Each gradient was found finite on its device; their sum is looked at here.
TEST_P(ProtectedUpdateTest, ASumOfGradientsThatOverflowsIsNotCommitted) {
  for (const OptimizerSettings& settings : {kAdamW, kSgd, kMomentum}) {
    for (const DType stored : {DType::kF32, DType::kBF16}) {
      for (const int gradients : {2, 4}) {
        for (const int64_t element : {-1, 5, 32}) {  // none, of a whole vector, the last one
          Arena arena(MakeModel({1000, 7, 33}, gradients, kBf16, stored), settings);
          if (element >= 0) arena.PutGradients(2, element, 3e38f);
          for (const char* by : {"who begins it", "a successor"}) {
            EXPECT_EQ(absl::IsOutOfRange(arena.Update(2, GetParam())), element >= 0) << by;
          }
          EXPECT_EQ(arena.Record(0).state == command::ObjectState::kClean, element < 0);
        }
      }
    }
  }
}

// A step of fp32 is lost in no master, however small it is beside a number of bf16.
TEST_P(ProtectedUpdateTest, MastersHaveTheBitsOfATrainingInFp32) {
  const std::vector<int64_t> sizes = {1000, 7, 33};
  Arena wide(MakeModel(sizes, 1), kAdamW), narrow(MakeModel(sizes, 1, kBf16), kAdamW);
  const model::ParamBlock &from = narrow.block(), &to = wide.block();
  std::vector<Floats> state = narrow.State();
  const auto gradient = narrow.Gradient();
  Floats w(static_cast<size_t>(to.elements())), m = w, v = w, g = w;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto copy = [&](const float* source, Floats& target) {
      std::copy_n(source + from.tensors[i].moment.first_element(), sizes[i],
                  target.begin() + to.tensors[i].weight.first_element());
    };
    copy(state[3].data(), w);
    copy(state[1].data(), m);
    copy(state[2].data(), v);
    copy(static_cast<const float*>(gradient[0]), g);
  }
  ThreadPool pool(1);
  testing_support::UpdateBlock(to, kAdamW, {static_cast<int64_t>(kVersion), 1e-3, 0.7},
                               {w.data(), m.data(), v.data()}, {g.data()}, pool, GetParam());
  ASSERT_TRUE(narrow.Update(1, GetParam()).ok());
  state = narrow.State();
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(std::memcmp(state[3].data() + from.tensors[i].moment.first_element(),
                          w.data() + to.tensors[i].weight.first_element(),
                          static_cast<size_t>(sizes[i]) * sizeof(float)),
              0);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// Runs the update in a child one instruction at a time; after each, as many as there are, what a
// process killed there would leave behind is copied, the update resumed on it and compared.
void ResumeAfterEachInstruction(const model::ModelSpec& model, const OptimizerSettings& settings,
                                Isa isa) {
  Arena arena(model, settings), copy(model, settings);
  const auto expected = arena.Expected();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    const bool ok = arena.Update(1, isa).ok();
    raise(SIGSTOP);
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSTOPPED(status)) << "the child is not traced";
  int64_t steps = 0, resumed_mid_vector = 0;
  std::vector<char> last, now;
  while (true) {
    ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) == SIGSTOP) break;
    ++steps;
    copy.CopyFrom(arena);
    // Instructions that changed nothing shared need no second try.
    const char* base = reinterpret_cast<const char*>(copy.Base());
    const ipc::SegmentConstants& c = copy.segment().constants();
    now.assign(base + c.data.offset, base + c.data.offset + 4096);
    now.insert(now.end(), base + c.cursors.offset, base + c.cursors.offset + 1024);
    now.insert(now.end(), base + c.records.offset, base + c.records.offset + 1024);
    if (now == last) continue;
    last = now;
    const uint64_t position = copy.segment().Cursor(0)->position.load();
    resumed_mid_vector += copy.Record(0).state == command::ObjectState::kUpdating && position > 0;
    ASSERT_TRUE(copy.Update(1, isa).ok());
    ExpectDone(copy, expected, absl::StrCat("killed after ", steps, " instructions"));
  }
  EXPECT_GT(resumed_mid_vector, 10);
  ptrace(PTRACE_CONT, child, nullptr, nullptr);
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ExpectDone(arena, expected, "not killed");
}

TEST_P(ProtectedUpdateTest, ResumesAfterDeathAtAnyInstruction) {
  for (const int gradients : {1, 2, 5}) {
    ResumeAfterEachInstruction(MakeModel({50, 33}, gradients), kAdamW, GetParam());
  }
  ResumeAfterEachInstruction(MakeModel({50, 33}, 1), kSgd, GetParam());
  ResumeAfterEachInstruction(MakeModel({50, 33}, 1), kMomentum, GetParam());
  // With a rate and a decay of its own for each tensor.
  model::ModelSpec ruled = MakeModel({50, 33}, 1);
  for (model::TensorSpec& tensor : ruled.blocks[0].tensors) {
    tensor.own_weight_decay = tensor.shape[0] * 0.01;
    tensor.learning_rate_factor = tensor.shape[0] * 0.1;
  }
  ResumeAfterEachInstruction(ruled, kAdamW, GetParam());
  ResumeAfterEachInstruction(ruled, kMomentum, GetParam());
}

TEST_P(ProtectedUpdateTest, ResumesAfterDeathAtAnyInstructionThatWritesAWorkingCopy) {
  ResumeAfterEachInstruction(MakeModel({50, 33}, 1, kBf16), kAdamW, GetParam());
  ResumeAfterEachInstruction(MakeModel({50, 33}, 1, kMixed), kSgd, GetParam());
  ResumeAfterEachInstruction(MakeModel({50, 33}, 2, kMixed, DType::kBF16), kAdamW, GetParam());
}

#endif

INSTANTIATE_TEST_SUITE_P(All, ProtectedUpdateTest,
                         ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(ToString(info.param)); });

// A child with two threads is killed at a random moment inside the update; another process with
// another instruction set and thread count goes on, perhaps killed too, until one gets through.
TEST(ProtectedUpdateKillTest, RandomKillsLeaveTheSameBits) {
  constexpr uint64_t kSeeds = testing_support::kSanitized ? 10 : 200;
  const model::ModelSpec model = MakeModel({700000, 768, 100001}, 4);
  const Arena pristine(model, kAdamW);
  const auto expected = pristine.Expected();
  Arena arena(model, kAdamW);
  int64_t inside = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    CounterRandom random(seed);
    arena.CopyFrom(pristine);
    for (int attempt = 0; attempt < 3; ++attempt) {
      const int threads = 1 + static_cast<int>(random.Below(3));
      const Isa isa = random.Below(2) == 0 ? Isa::kScalar : BestIsa();
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) _exit(arena.Update(threads, isa).ok() ? 0 : 1);
      const uint64_t target = random.Below(2 * ipc::kUpdateChunkElements / ipc::kVectorElements);
      const int64_t chunk = static_cast<int64_t>(random.Below(4));
      bool exited = false;
      while (arena.segment().Cursor(chunk)->position.load() < target && !exited) {
        exited = waitpid(child, nullptr, WNOHANG) == child;
        sched_yield();
      }
      if (arena.Record(0).state == command::ObjectState::kUpdating) ++inside;
      if (!exited) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
      }
    }
    ASSERT_TRUE(arena.Update(2, BestIsa()).ok());
    ExpectDone(arena, expected, "after kills");
  }
  EXPECT_GT(inside, static_cast<int64_t>(kSeeds / 4)) << "too few kills hit an update";
}

TEST(ProtectedUpdateErrorTest, WrongStatesAreRefusedAndNothingIsTouched) {
  Arena arena(MakeModel({100}, 1), kAdamW);
  const auto before = arena.State();
  const int gradient = arena.layout().IndexOf({command::ObjectKind::kGradient, 0, 0});
  const command::ObjectView good = *arena.segment().ReadRecord(gradient);

  arena.segment().SetFree(gradient);
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kFailedPrecondition);
  arena.segment().Publish(gradient, good);

  const int parameter = arena.layout().IndexOf({command::ObjectKind::kParameter, 0, 0});
  command::ObjectView view = arena.Record(0);
  view.version = kVersion - 2;
  arena.segment().Publish(parameter, view);
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kFailedPrecondition);

  view.version = kVersion;
  view.state = command::ObjectState::kUpdating;  // with moments that have not even started
  arena.segment().Publish(parameter, view);
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(arena.State(), before);
}

TEST(ProtectedUpdateErrorTest, EveryGradientMustBeCommitted) {
  Arena arena(MakeModel({100}, 5), kAdamW);
  const auto before = arena.State();
  const int gradient = arena.layout().IndexOf({command::ObjectKind::kGradient, 0, 0});
  const command::ObjectView good = *arena.segment().ReadRecord(gradient);
  arena.segment().SetFree(gradient);
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(arena.State(), before);
  arena.segment().Publish(gradient, good);
  EXPECT_TRUE(arena.Update(1, BestIsa()).ok());
}

// The cursors name all gradients: an update does not go on with others than it began with.
TEST(ProtectedUpdateErrorTest, OtherGradientsAreDataLoss) {
  Arena arena(MakeModel({100}, 5), kAdamW);
  ASSERT_TRUE(arena.Update(1, BestIsa()).ok());
  for (int part = 2; part >= 0; --part) {
    command::ObjectView view = arena.Record(part);
    view.state = command::ObjectState::kUpdating;
    arena.segment().Publish(arena.layout().IndexOf(view.key), view);
  }
  arena.SwapGradients(3, 4);
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kDataLoss);
}

TEST(ProtectedUpdateErrorTest, AForeignCursorIsDataLoss) {
  Arena arena(MakeModel({100}, 1), kAdamW);
  for (int part = 2; part >= 0; --part) {
    command::ObjectView view = arena.Record(part);
    view.version = kVersion;
    view.state = command::ObjectState::kUpdating;
    arena.segment().Publish(arena.layout().IndexOf(view.key), view);
  }
  EXPECT_EQ(arena.Update(1, BestIsa()).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace harmony::worker
