#include "common/model/exported_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/document/strict_json.h"
#include "common/model/exported_fields.h"

namespace harmony::model {
namespace {

using document::JsonField;

constexpr int64_t kVersion = 1;
// No tensor may be larger; so the sizes of single ones need no care for overflow.
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr int64_t kMostExtent = int64_t{1} << 40;
constexpr int64_t kMostFlops = 1'000'000'000'000'000'000;
constexpr size_t kDigestLength = 64;

constexpr std::array<Named<LossReduction>, 2> kReductions = {
    {{"mean", LossReduction::kMean}, {"sum", LossReduction::kSum}}};
constexpr std::array<Named<TensorRole>, 3> kRoles = {{{"trained", TensorRole::kTrained},
                                                      {"fixed", TensorRole::kFixed},
                                                      {"statistic", TensorRole::kStatistic}}};
constexpr std::array<Named<InputSource>, 2> kDerived = {
    {{"label_counts", InputSource::kLabelCounts}, {"sample_keys", InputSource::kSampleKeys}}};
constexpr std::array<Named<SlotKind>, 3> kSlotKinds = {{{"value", SlotKind::kValue},
                                                        {"input", SlotKind::kInput},
                                                        {"parameter", SlotKind::kParameter}}};

DType ReadDType(const JsonField& field) {
  const std::string text = field.Text();
  for (const Named<DType>& known : kTensorTypes) {
    if (text == known.name) return known.thing;
  }
  if (field.ok()) field.Wrong(absl::StrCat("'", text.substr(0, 100), "' is no type of tensors"));
  return DType::kF32;
}

// Of one sample, as far as the extents say: at the greatest length, which has the most.
int64_t ElementsOf(const ExportedTensor& tensor, int64_t length) {
  int64_t elements = 1;
  for (const Extent& extent : tensor.shape) {
    if (__builtin_mul_overflow(elements, extent.size.At(length), &elements) ||
        elements > kMostElements) {
      return kMostElements + 1;
    }
  }
  return elements;
}

bool GrowsWithSamples(const ExportedTensor& tensor) {
  return std::count_if(tensor.shape.begin(), tensor.shape.end(),
                       [](const Extent& extent) { return extent.per_sample; }) == 1;
}

bool IsText(const JsonField& field) { return absl::StartsWith(field.Source(), "\""); }

class Reader {
 public:
  explicit Reader(const JsonField& root) : root_(root) {}

  ExportedModel Read() {
    root_.Only({"harmony_model", "name", "torch", "inputs", "values", "parameters", "layers",
                "graphs", "loss", "sequence_length"});
    model_.name = root_.Get("name").Text();
    // First: it says what all amounts may be.
    if (root_.Has("sequence_length")) ReadLengths(root_.Get("sequence_length"));
    model_.torch = root_.Get("torch").Text();
    for (const JsonField& field : root_.Get("inputs").Items()) ReadInput(field);
    for (const JsonField& field : root_.Get("values").Items()) ReadValue(field);
    for (const JsonField& field : root_.Get("parameters").Items()) ReadParameter(field);
    for (const JsonField& field : root_.Get("graphs").Items()) ReadGraph(field);
    const JsonField layers = root_.Get("layers");
    const std::vector<JsonField> items = layers.Items();
    if (items.size() < 2) layers.Wrong("must have at least two layers");
    for (size_t i = 0; i < items.size() && root_.ok(); ++i) {
      ReadLayer(items[i], i + 1 == items.size());
    }
    if (!root_.ok()) return model_;
    const JsonField loss = root_.Get("loss");
    loss.Only({"reduction", "labels_per_sample", "counted"});
    model_.reduction = OneOf(loss.Get("reduction"), kReductions);
    model_.labels_per_sample = ReadAmount(loss.Get("labels_per_sample"), 1, kMostExtent);
    if (loss.Has("counted")) ReadCounted(loss.Get("counted"));
    if (root_.ok() && !loss.Has("counted") && FindDerived(InputSource::kLabelCounts) >= 0) {
      loss.Wrong("must have \"counted\": an input is derived from it");
    }
    CheckUses();
    return std::move(model_);
  }

 private:
  // A name may stand once among those of its kind.
  void Once(std::set<std::string>& names, const std::string& name, const JsonField& field) {
    if (!names.insert(name).second) field.Wrong(absl::StrCat("'", name, "' is there twice"));
  }

  // One length, or the bounds of those that a job may choose.
  void ReadLengths(const JsonField& field) {
    SequenceLengths& lengths = model_.sequence_length;
    lengths.free = absl::StartsWith(field.Source(), "{");
    if (!lengths.free) {
      lengths.least = lengths.most = field.Integer(1, kMostExtent);
      return;
    }
    field.Only({"least", "most"});
    lengths.least = field.Get("least").Integer(1, limits::kMostTokens);
    lengths.most = field.Get("most").Integer(lengths.least, limits::kMostTokens);
  }

  // So that whoever evaluates it at one of the lengths needs no care for overflow.
  void CheckAmount(const JsonField& field, const LengthPolynomial& amount, int64_t least,
                   int64_t most) {
    if (!field.ok() || amount.is_number()) return;
    const SequenceLengths& lengths = model_.sequence_length;
    if (!lengths.free) {
      field.Wrong("depends on s, but \"sequence_length\" is no {\"least\", \"most\"}");
    } else if (!amount.NeverFalls(lengths.least)) {
      field.Wrong(absl::StrCat("is less than 0 or falls where s grows from ", lengths.least));
    } else if (amount.At(lengths.least) < least || amount.At(lengths.most) > most) {
      field.Wrong(absl::StrCat("is not in [", least, ", ", most, "] for s from ", lengths.least,
                               " to ", lengths.most));
    }
  }

  // A number, or a text with s.
  LengthPolynomial ReadAmount(const JsonField& field, int64_t least, int64_t most) {
    if (!IsText(field)) return field.Integer(least, most);
    const std::optional<LengthText> text = ParseLengthText(field.Text());
    if (!text.has_value() || text->times_samples || text->amount.is_number()) {
      field.Wrong("must be a number, or a sum of products with s such as \"2*s*s+1\"");
      return {};
    }
    CheckAmount(field, text->amount, least, most);
    return text->amount;
  }

  ExportedTensor ReadTensor(const JsonField& field, bool named) {
    ExportedTensor tensor;
    if (named) {
      tensor.name = field.Get("name").Text();
      if (tensor.name.empty()) field.Get("name").Wrong("must not be empty");
    }
    tensor.dtype = ReadDType(field.Get("dtype"));
    const JsonField shape = field.Get("shape");
    for (const JsonField& extent : shape.Items()) {
      tensor.shape.push_back(ReadExtent(extent));
      CheckAmount(extent, tensor.shape.back().size, 0, kMostExtent);
    }
    if (ElementsOf(tensor, model_.sequence_length.most) > kMostElements) {
      shape.Wrong("is too large");
    }
    return tensor;
  }

  std::vector<ExportedGraph::Phase> ReadSizes(const JsonField& field) {
    std::vector<ExportedGraph::Phase> sizes;
    for (const JsonField& pair : field.Items()) {
      const std::vector<JsonField> parts = pair.Items();
      if (parts.size() != 2) {
        pair.Wrong("must be [per_sample, fixed]");
        return sizes;
      }
      sizes.push_back({ReadAmount(parts[0], 0, kMostBytes.count()),
                       ReadAmount(parts[1], 0, kMostBytes.count())});
    }
    return sizes;
  }

  LengthPolynomial ReadFlops(const JsonField& field) {
    if (IsText(field)) return ReadAmount(field, 0, kMostFlops);
    return std::llround(field.NotNegative(static_cast<double>(kMostFlops)));
  }

  void ReadInput(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"name", "dtype", "shape", "values_below", "derived"});
    ExportedInput input;
    input.tensor = ReadTensor(field, /*named=*/true);
    input.values_below = field.Get("values_below").Integer(0);
    Once(input_names_, input.tensor.name, field.Get("name"));
    if (field.ok() && (input.tensor.shape.empty() || input.tensor.shape[0] != Extent{1, true} ||
                       !GrowsWithSamples(input.tensor))) {
      field.Get("shape").Wrong("must begin with \"n\" and have it nowhere else");
    }
    if (field.ok() && field.Has("derived")) {
      const JsonField derived = field.Get("derived");
      input.source = OneOf(derived, kDerived);
      const bool pair = input.source == InputSource::kLabelCounts;
      const std::vector<Extent> shape =
          pair ? std::vector<Extent>{{1, true}, {2, false}} : std::vector<Extent>{{1, true}};
      if (input.tensor.dtype != DType::kI64 || input.tensor.shape != shape) {
        derived.Wrong(absl::StrCat("makes int64 numbers, [\"n\"", pair ? ", 2" : "", "]"));
      }
      if (FindDerived(input.source) >= 0) derived.Wrong("is there twice");
      if (input.values_below != 0) field.Get("values_below").Wrong("must be 0: it is derived");
    }
    model_.inputs.push_back(std::move(input));
  }

  // The number of the input that comes from there, -1 when there is none.
  int FindDerived(InputSource source) const {
    const auto found =
        std::find_if(model_.inputs.begin(), model_.inputs.end(),
                     [&](const ExportedInput& input) { return input.source == source; });
    return found == model_.inputs.end() ? -1 : static_cast<int>(found - model_.inputs.begin());
  }

  // Labels that count only where they are not the ignored one: the host counts them, and the last
  // layer is told.
  void ReadCounted(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"input", "first", "ignored"});
    ExportedCountedLabels counted;
    counted.input = field.Get("input").Int(0, static_cast<int>(model_.inputs.size()) - 1);
    counted.first = ReadAmount(field.Get("first"), 0, kMostExtent);
    counted.ignored = field.Get("ignored").Integer(INT64_MIN);
    if (!field.ok()) return;
    const ExportedInput& brings = model_.inputs[static_cast<size_t>(counted.input)];
    const ExportedTensor& labels = brings.tensor;
    if (!HasRanges(labels.dtype) || brings.source != InputSource::kData) {
      field.Get("input").Wrong("is no tensor of integers that the data bring");
    }
    if (!Fits(counted.ignored, labels.dtype)) {
      field.Get("ignored").Wrong(absl::StrCat("is no ", ToString(labels.dtype)));
    }
    if (!IsPartOf(labels, counted.first, model_.labels_per_sample)) {
      field.Get("first").Wrong("with \"labels_per_sample\" is more than a sample has");
    }
    if (model_.reduction != LossReduction::kSum) field.Wrong("needs a loss that is a sum");
    const int counts = FindDerived(InputSource::kLabelCounts);
    const std::vector<LayerSlot>& slots = model_.layers.back().slots;
    if (std::none_of(slots.begin(), slots.end(), [&](const LayerSlot& slot) {
          return slot.kind == SlotKind::kInput && slot.index == counts;
        })) {
      field.Wrong("needs an input \"derived\": \"label_counts\" that the last layer reads");
    }
    model_.counted_labels = counted;
  }

  // Whether a sample of the labels has the numbers `first` to `first` + `count` - 1 at any length.
  bool IsPartOf(const ExportedTensor& labels, const LengthPolynomial& first,
                const LengthPolynomial& count) const {
    std::optional<LengthPolynomial> rest = LengthPolynomial(1);
    for (const Extent& extent : labels.shape) {
      if (rest.has_value()) rest = LengthPolynomial::Product(*rest, extent.size);
    }
    for (const LengthPolynomial& part : {first, count}) {
      if (rest.has_value()) rest = LengthPolynomial::Difference(*rest, part);
    }
    return rest.has_value() && rest->NeverFalls(model_.sequence_length.least);
  }

  void ReadValue(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"name", "dtype", "shape", "gradient"});
    ExportedValue value;
    value.tensor = ReadTensor(field, /*named=*/true);
    value.gradient = field.Get("gradient").Flag();
    Once(value_names_, value.tensor.name, field.Get("name"));
    if (field.ok() && !GrowsWithSamples(value.tensor)) {
      field.Get("shape").Wrong("must have \"n\" in one of its extents: it crosses a boundary");
    }
    model_.values.push_back(std::move(value));
  }

  void ReadParameter(const JsonField& field) {
    if (!field.ok() || elements_ > kMostElements) return;
    field.Only({"name", "aliases", "dtype", "shape", "role", "weight_decay", "exported"});
    const ExportedTensor tensor = ReadTensor(field, /*named=*/true);
    ExportedParameter parameter;
    parameter.name = tensor.name;
    Once(parameter_names_, parameter.name, field.Get("name"));
    for (const JsonField& alias : field.Get("aliases").Items()) {
      parameter.aliases.push_back(alias.Text());
      Once(parameter_names_, parameter.aliases.back(), alias);
    }
    parameter.dtype = tensor.dtype;
    for (const Extent& extent : tensor.shape) {
      if (extent.per_sample || !extent.size.is_number()) {
        field.Get("shape").Wrong("must consist of numbers");
      }
      parameter.shape.push_back(extent.size.number());
    }
    parameter.role = OneOf(field.Get("role"), kRoles);
    parameter.weight_decay = field.Get("weight_decay").Flag();
    parameter.exported = field.Get("exported").Flag();
    const bool trains = parameter.dtype == DType::kF32 || parameter.dtype == DType::kBF16;
    if (field.ok() && parameter.role == TensorRole::kTrained && !trains) {
      field.Get("dtype").Wrong(absl::StrCat("'", parameter.name,
                                            "' is trained, and parameters are trained in float32 "
                                            "or bfloat16"));
    }
    elements_ += ElementsOf(tensor, model_.sequence_length.most);
    if (field.ok() && elements_ > kMostElements) {
      field.Get("shape").Wrong("makes the parameters too large together");
    }
    model_.parameters.push_back(std::move(parameter));
  }

  void ReadGraph(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"graph", "forward_flops", "saved", "workspace"});
    ExportedGraph graph;
    graph.digest = field.Get("graph").Text();
    // It becomes a part of a path.
    const bool hexadecimal = std::all_of(graph.digest.begin(), graph.digest.end(), [](char c) {
      return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
    });
    if (field.ok() && (graph.digest.size() != kDigestLength || !hexadecimal)) {
      field.Get("graph").Wrong("must be a SHA-256 in lower-case hexadecimal");
    }
    if (!graphs_.emplace(graph.digest, static_cast<int>(model_.graphs.size())).second) {
      field.Get("graph").Wrong("is there twice");
    }
    graph.forward_flops = ReadFlops(field.Get("forward_flops"));
    for (const JsonField& saved : field.Get("saved").Items()) {
      if (!saved.ok()) return;
      saved.Only({"dtype", "shape"});
      graph.saved.push_back(ReadTensor(saved, /*named=*/false));
    }
    const JsonField workspace = field.Get("workspace");
    workspace.Only(
        {"forward", "saving", "keeping", "backward", "kept_backward", "fused", "attention_sums"});
    graph.workspace = {ReadSizes(workspace.Get("forward")),
                       ReadSizes(workspace.Get("saving")),
                       ReadSizes(workspace.Get("keeping")),
                       ReadSizes(workspace.Get("backward")),
                       ReadSizes(workspace.Get("kept_backward")),
                       ReadSizes(workspace.Get("fused")),
                       {}};
    if (workspace.Has("attention_sums")) {
      graph.workspace.attention_sums = ReadSizes(workspace.Get("attention_sums"));
    }
    model_.graphs.push_back(std::move(graph));
  }

  void ReadLayer(const JsonField& field, bool last) {
    field.Only({"name", "graph", "slots", "outputs"});
    ExportedLayer layer;
    layer.name = field.Get("name").Text();
    const std::string digest = field.Get("graph").Text();
    const auto graph = graphs_.find(digest);
    if (field.ok() && graph == graphs_.end()) {
      field.Get("graph").Wrong("is not among \"graphs\"");
    }
    layer.graph = graph == graphs_.end() ? 0 : graph->second;
    std::set<std::pair<SlotKind, int>> seen;
    bool trained = false;
    for (const JsonField& slot : field.Get("slots").Items()) {
      layer.slots.push_back(ReadSlot(slot));
      if (!field.ok()) return;
      const LayerSlot& read = layer.slots.back();
      if (!seen.emplace(read.kind, read.index).second) slot.Wrong("the layer reads this twice");
      if (read.kind == SlotKind::kValue && !made_.contains(read.index)) {
        slot.Wrong("is a value that no earlier layer makes");
      }
      trained |= read.kind == SlotKind::kParameter &&
                 model_.parameters[static_cast<size_t>(read.index)].role == TensorRole::kTrained;
    }
    if (field.ok() && !trained) field.Get("slots").Wrong("name no trained parameter");
    const JsonField outputs = field.Get("outputs");
    for (const JsonField& output : outputs.Items()) {
      layer.outputs.push_back(output.Int(0, static_cast<int>(model_.values.size()) - 1));
    }
    // Only after the slots, so that no layer reads what it makes.
    for (int value : layer.outputs) {
      if (!made_.insert(value).second) outputs.Wrong("has a value that is made twice");
    }
    if (field.ok() && layer.outputs.empty() != last) {
      outputs.Wrong(last ? "must be empty: the last layer ends in the loss"
                         : "must not be empty before the last layer");
    }
    model_.layers.push_back(std::move(layer));
  }

  LayerSlot ReadSlot(const JsonField& field) {
    const std::vector<JsonField> parts = field.Items();
    if (parts.size() != 2) {
      field.Wrong("must be [kind, index]");
      return {};
    }
    LayerSlot slot;
    slot.kind = OneOf(parts[0], kSlotKinds);
    const size_t count = slot.kind == SlotKind::kValue   ? model_.values.size()
                         : slot.kind == SlotKind::kInput ? model_.inputs.size()
                                                         : model_.parameters.size();
    slot.index = parts[1].Int(0, static_cast<int>(count) - 1);
    return slot;
  }

  // What only shows when all layers are known.
  void CheckUses() {
    if (!root_.ok()) return;
    std::vector<int> users(model_.parameters.size()), readers(model_.values.size());
    for (const ExportedLayer& layer : model_.layers) {
      for (const LayerSlot& slot : layer.slots) {
        if (slot.kind == SlotKind::kParameter) ++users[static_cast<size_t>(slot.index)];
        if (slot.kind == SlotKind::kValue) ++readers[static_cast<size_t>(slot.index)];
      }
    }
    for (size_t i = 0; i < users.size(); ++i) {
      const ExportedParameter& parameter = model_.parameters[i];
      if (users[i] == 0) {
        root_.Get("parameters")
            .Wrong(absl::StrCat("has '", parameter.name, "', which no layer reads"));
      }
      if (parameter.role == TensorRole::kStatistic && users[i] > 1) {
        root_.Get("parameters")
            .Wrong(absl::StrCat("has the statistic '", parameter.name,
                                "', which several layers write: its order would be left open"));
      }
    }
    for (size_t i = 0; i < readers.size(); ++i) {
      if (readers[i] > 0) continue;
      root_.Get("values").Wrong(
          absl::StrCat("has '", model_.values[i].tensor.name, "', which no layer reads"));
    }
  }

  const JsonField& root_;
  ExportedModel model_;
  std::map<std::string, int> graphs_;
  std::set<std::string> input_names_, value_names_, parameter_names_;
  std::set<int> made_;
  int64_t elements_ = 0;  // of all parameters
};

}  // namespace

Extent ReadExtent(const JsonField& field) {
  if (!IsText(field)) return {field.Integer(0, kMostExtent), false};
  const std::optional<LengthText> text = ParseLengthText(field.Text());
  const bool written = text.has_value() && (text->times_samples || !text->amount.is_number());
  const auto fits = [](int64_t number) { return 1 <= number && number <= kMostExtent; };
  if (written && (!text->amount.is_number() || fits(text->amount.number()))) {
    return {text->amount, text->times_samples};
  }
  field.Wrong(
      "must be a number, \"n\" or \"K*n\", or a sum of products with s such as \"2*n*s*s+n\"");
  return {};
}

bool IsExportedModel(absl::string_view json) {
  const absl::StatusOr<nlohmann::json> parsed = document::ParseJsonFields(json, "model.json");
  return parsed.ok() && parsed->is_object() && parsed->contains("harmony_model");
}

absl::StatusOr<ExportedModel> ParseExportedModel(absl::string_view json, absl::string_view where) {
  ExportedModel model;
  HARMONY_RETURN_IF_ERROR(document::ReadJson(json, where, [&](const JsonField& root) {
    const int64_t version = root.Get("harmony_model").Integer(0);
    if (root.ok() && version != kVersion) {
      root.Get("harmony_model")
          .Wrong(absl::StrCat("is ", version, ", a directory of another version than ", kVersion,
                              ", which this program reads; export the model again"));
    }
    if (root.ok()) model = Reader(root).Read();
  }));
  return model;
}

}  // namespace harmony::model
