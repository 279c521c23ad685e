#include "common/io/training_data.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/io/array_file.h"
#include "common/io/safetensors.h"
#include "common/io/token_file.h"

namespace harmony::io {
namespace {

// Numbers of the model's inputs that the data bring.
std::vector<size_t> DataInputs(const model::ModelSpec& model) {
  std::vector<size_t> inputs;
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    if (model.inputs[i].source == model::InputSource::kData) inputs.push_back(i);
  }
  return inputs;
}

std::string NamesOf(const model::ModelSpec& model) {
  return absl::StrJoin(DataInputs(model), ", ", [&](std::string* out, size_t input) {
    absl::StrAppend(out, model.inputs[input].tensor.name);
  });
}

// The number of an input that the data bring, -1 when there is none of that name.
int FindInput(const model::ModelSpec& model, absl::string_view name) {
  for (size_t i : DataInputs(model)) {
    if (model.inputs[i].tensor.name == name) return static_cast<int>(i);
  }
  return -1;
}

// Of the tokens that are asked for, most are masked, some are another token, some stay, so that the
// model cannot tell which they are (BERT, Devlin et al. 2019, section 3.1).
constexpr uint32_t kMasked = 0xCCCCCCCC;    // 80% of 2^32
constexpr uint32_t kReplaced = 0xE6666666;  // up to 90%
// Keeps these draws apart from those of a dropout, which have the same key.
constexpr uint64_t kMaskStream = ~uint64_t{0};

// A file of tokens: input_ids are the tokens of a sequence, labels the ones after them, or the same
// ones for a model that shifts them itself; or, where the job masks, input_ids have gaps and labels
// what stands there.
class TokenData : public TrainingData {
 public:
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const job::JobSpec& job,
                                                            const model::ModelSpec& model,
                                                            int64_t token_bytes) {
    const int ids = FindInput(model, "input_ids"), labels = FindInput(model, "labels");
    const auto fits = [&](int input) {
      if (input < 0) return false;
      const model::SampleTensor& tensor = model.inputs[static_cast<size_t>(input)].tensor;
      return tensor.shape == std::vector<int64_t>{job.sequence_length} &&
             (tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64);
    };
    if (DataInputs(model).size() != 2 || !fits(ids) || !fits(labels)) {
      const bool named = ids >= 0 && labels >= 0 && job.sequence_length == 1;
      return absl::InvalidArgumentError(absl::StrCat(
          "data.path gives tokens and the ones after them, but the model reads ", NamesOf(model),
          named ? ", exported without a length of sequences: export it again with sequence_length "
                  "(--sequence-length), or"
                : ":",
          " give data: {inputs: {NAME: FILE.npy, ...}}, an array of samples for each"));
    }
    HARMONY_RETURN_IF_ERROR(CheckMasking(job, model, ids, labels));
    HARMONY_ASSIGN_OR_RETURN(TokenFile file,
                             TokenFile::Open(job.data_path, job.data_format, token_bytes));
    return std::unique_ptr<TrainingData>(new TokenData(std::move(file), job, model, ids, labels));
  }

  std::string where() const override { return absl::StrCat("data.path: ", file_.path()); }
  int64_t sample_count() const override { return file_.SequenceCount(tokens_); }
  absl::Status Validate(int64_t global_batch) const override {
    return file_.Validate(tokens_below_, tokens_, global_batch);
  }
  absl::StatusOr<DataFingerprint> Fingerprint() const override { return file_.Fingerprint(); }
  bool IsUnchanged() const override { return file_.file().IsUnchanged(); }

  absl::Status ReadSample(int64_t k, uint64_t key,
                          absl::Span<std::byte* const> places) const override {
    const auto count = static_cast<size_t>(tokens_);
    std::vector<int32_t> sequence(count + 1);
    HARMONY_RETURN_IF_ERROR(file_.ReadSequence(k, absl::MakeSpan(sequence)));
    const auto tokens = absl::MakeSpan(sequence);
    const auto next = tokens.subspan(shifts_labels_ ? 0 : 1, count);
    std::vector<int64_t> labels(next.begin(), next.end());
    if (mask_probability_ > 0) Mask(key, tokens.first(count), absl::MakeSpan(labels));
    Put(ids_, absl::MakeConstSpan(sequence).first(count), places);
    Put(labels_, absl::MakeConstSpan(labels), places);
    return absl::OkStatus();
  }

 private:
  struct Input {
    size_t number;
    DType dtype;
  };

  TokenData(TokenFile file, const job::JobSpec& job, const model::ModelSpec& model, int ids,
            int labels)
      : file_(std::move(file)),
        tokens_(job.sequence_length),
        vocabulary_(model.inputs[static_cast<size_t>(ids)].values_below),
        tokens_below_(
            LeastBound(vocabulary_, model.inputs[static_cast<size_t>(labels)].values_below)),
        mask_probability_(job.mask_probability),
        mask_token_(static_cast<int32_t>(job.mask_token)),
        ignored_(model.inputs[static_cast<size_t>(labels)].ignored.value_or(0)),
        shifts_labels_(ShiftsLabels(model)),
        ids_(InputAt(model, ids)),
        labels_(InputAt(model, labels)) {}

  static int64_t LeastBound(int64_t a, int64_t b) {
    return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
  }

  static absl::Status CheckMasking(const job::JobSpec& job, const model::ModelSpec& model, int ids,
                                   int labels) {
    if (job.mask_probability == 0) return absl::OkStatus();
    if (!model.inputs[static_cast<size_t>(labels)].ignored.has_value()) {
      return absl::InvalidArgumentError(
          "data.mask_probability: the model's loss counts every label, so it cannot be asked for "
          "masked tokens only; export the model with a mean cross entropy of its labels "
          "(--task masked-lm), or remove the key");
    }
    if (ShiftsLabels(model)) {
      return absl::InvalidArgumentError(
          "data.mask_probability: the model's loss holds each token against the one after it, not "
          "against what was masked; export a model of masked tokens (--task masked-lm), or remove "
          "the key");
    }
    const int64_t below = model.inputs[static_cast<size_t>(ids)].values_below;
    if (below > 0 && job.mask_token >= below) {
      return absl::InvalidArgumentError(absl::StrCat("data.mask_token: is ", job.mask_token,
                                                     ", but the model has tokens 0 to ", below - 1,
                                                     " only"));
    }
    return absl::OkStatus();
  }

  // Puts the mask into `tokens`, and what stood there into `labels`. At least one is asked for.
  void Mask(uint64_t key, absl::Span<int32_t> tokens, absl::Span<int64_t> labels) const {
    const auto share = static_cast<uint64_t>(mask_probability_ * 0x1.0p32);
    const auto ask_for = [&](size_t i, const std::array<uint32_t, 4>& words) {
      labels[i] = tokens[i];
      // A model without a bound has no other token to offer.
      if (words[1] < kMasked || (words[1] < kReplaced && vocabulary_ == 0)) {
        tokens[i] = mask_token_;
      } else if (words[1] < kReplaced) {
        tokens[i] = static_cast<int32_t>(Scaled(words[2], vocabulary_));
      }
    };
    bool any = false;
    std::fill(labels.begin(), labels.end(), ignored_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto words = Philox4x32(key, i, kMaskStream);
      if (words[0] >= share) continue;
      ask_for(i, words);
      any = true;
    }
    if (any) return;
    const auto one = static_cast<size_t>(Scaled(Philox4x32(key, 0, kMaskStream)[3], tokens_));
    ask_for(one, Philox4x32(key, one, kMaskStream));
  }

  // A number below `end` for one below 2^32.
  static int64_t Scaled(uint32_t word, int64_t end) {
    return static_cast<int64_t>((uint64_t{word} * static_cast<uint64_t>(end)) >> 32);
  }

  static Input InputAt(const model::ModelSpec& model, int number) {
    const auto index = static_cast<size_t>(number);
    return {index, model.inputs[index].tensor.dtype};
  }
  template <typename T>
  static void Put(const Input& input, absl::Span<const T> tokens,
                  absl::Span<std::byte* const> places) {
    if (input.dtype == DType::kI32) {
      std::copy(tokens.begin(), tokens.end(), reinterpret_cast<int32_t*>(places[input.number]));
    } else {
      std::copy(tokens.begin(), tokens.end(), reinterpret_cast<int64_t*>(places[input.number]));
    }
  }

  const TokenFile file_;
  const int64_t tokens_;           // of a sequence
  const int64_t vocabulary_;       // of input_ids; 0: there is no bound
  const int64_t tokens_below_;     // of input_ids and labels; likewise
  const double mask_probability_;  // 0: nothing is masked
  const int32_t mask_token_;
  const int64_t ignored_;
  const bool shifts_labels_;
  const Input ids_, labels_;
};

// An array for each input.
class ArrayData : public TrainingData {
 public:
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const job::JobSpec& job,
                                                            const model::ModelSpec& model) {
    std::vector<Input> inputs;
    for (size_t number : DataInputs(model)) {
      const model::BatchInput& input = model.inputs[number];
      const std::string& name = input.tensor.name;
      const auto given = job.data_inputs.find(name);
      if (given == job.data_inputs.end()) {
        return absl::InvalidArgumentError(absl::StrCat("data.inputs: '", name, "' is missing; the ",
                                                       "model reads ", NamesOf(model)));
      }
      absl::StatusOr<ArrayFile> file = ArrayFile::Open(given->second, name);
      if (!file.ok()) return WithContext(file.status(), absl::StrCat("data.inputs.", name));
      HARMONY_RETURN_IF_ERROR(CheckShape(input.tensor, *file));
      inputs.push_back({number, input, *std::move(file)});
    }
    for (const auto& [name, path] : job.data_inputs) {
      if (FindInput(model, name) >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("data.inputs: the model reads no '", name, "'; it reads ", NamesOf(model)));
    }
    return std::unique_ptr<TrainingData>(new ArrayData(std::move(inputs)));
  }

  std::string where() const override {
    return absl::StrCat("data.inputs: ", inputs_[0].file.path());
  }
  int64_t sample_count() const override { return inputs_[0].file.samples(); }

  absl::Status Validate(int64_t global_batch) const override {
    for (const Input& input : inputs_) {
      const ArrayFile& file = input.file;
      if (file.samples() != sample_count()) {
        return Wrong(input, absl::StrCat("has ", file.samples(), " samples, but ",
                                         inputs_[0].file.path(), " has ", sample_count()));
      }
      if (file.samples() < global_batch) {
        return Wrong(input,
                     absl::StrCat("has ", file.samples(), " samples, fewer than one batch of ",
                                  global_batch, " (or lower global_batch_size)"));
      }
      const model::ValueRange range = input.described.range();
      if (!range.bounded()) continue;
      HARMONY_ASSIGN_OR_RETURN(const ArrayFile::OutOfRange found, file.FindOutOfRange(range));
      if (found.sample < 0) continue;
      return Wrong(input,
                   absl::StrCat("sample ", found.sample, " has ", found.value, " at position ",
                                found.position, ", which is not in ", ToString(range)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DataFingerprint> Fingerprint() const override {
    DataFingerprint all;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const File& file = inputs_[i].file.file();
      HARMONY_ASSIGN_OR_RETURN(const int64_t size, file.Size());
      HARMONY_ASSIGN_OR_RETURN(const DataFingerprint one, FingerprintOf(file, size));
      all = i == 0 ? one : Together(all, one);
    }
    return all;
  }

  bool IsUnchanged() const override {
    return absl::c_all_of(inputs_,
                          [](const Input& input) { return input.file.file().IsUnchanged(); });
  }

  absl::Status ReadSample(int64_t k, uint64_t, absl::Span<std::byte* const> places) const override {
    for (const Input& input : inputs_) {
      HARMONY_RETURN_IF_ERROR(input.file.Read(k, 1, places[input.number]));
    }
    return absl::OkStatus();
  }

 private:
  struct Input {
    size_t number;  // among the model's
    model::BatchInput described;
    ArrayFile file;
  };

  explicit ArrayData(std::vector<Input> inputs) : inputs_(std::move(inputs)) {}

  static absl::Status CheckShape(const model::SampleTensor& input, const ArrayFile& file) {
    const std::vector<int64_t> sample(file.shape().begin() + 1, file.shape().end());
    if (file.dtype() == input.dtype && sample == input.shape) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "data.inputs.", input.name, ": ", file.path(), ": holds samples of ", ShapeString(sample),
        " numbers of ", ToString(file.dtype()), ", but the model reads ", ShapeString(input.shape),
        " of ", ToString(input.dtype)));
  }
  static absl::Status Wrong(const Input& input, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("data.inputs.", input.described.tensor.name,
                                                   ": ", input.file.path(), ": ", what));
  }

  const std::vector<Input> inputs_;
};

}  // namespace

bool ShiftsLabels(const model::ModelSpec& model) {
  if (!model.counted_labels.has_value() || model.counted_labels->first != 1) return false;
  const model::BatchInput& labels = model.inputs[static_cast<size_t>(model.counted_labels->input)];
  return labels.tensor.shape == std::vector<int64_t>{model.labels_per_sample + 1};
}

absl::StatusOr<std::unique_ptr<TrainingData>> OpenTrainingData(const job::JobSpec& job,
                                                               const model::ModelSpec& model,
                                                               int64_t token_bytes) {
  return job.data_inputs.empty() ? TokenData::Open(job, model, token_bytes)
                                 : ArrayData::Open(job, model);
}

}  // namespace harmony::io
