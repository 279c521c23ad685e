#include "common/graphs/graph_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/graphs/own_operators.h"
#include "common/model/exported_fields.h"

namespace harmony::graphs {
namespace {

using document::JsonField;
using model::Named;
using model::OneOf;

constexpr int64_t kVersion = 1;
// Of values, and of whatever is counted by an index: no layer of any model comes near.
constexpr int kMost = 1 << 20;

constexpr std::array<Named<Phase>, 4> kPhases = {{{"forward", Phase::kForward},
                                                  {"saving", Phase::kSaving},
                                                  {"backward", Phase::kBackward},
                                                  {"fused", Phase::kFused}}};
constexpr std::array<Named<InputKind>, 6> kInputKinds = {{{"slot", InputKind::kSlot},
                                                          {"saved", InputKind::kSaved},
                                                          {"tangent", InputKind::kTangent},
                                                          {"samples", InputKind::kSamples},
                                                          {"length", InputKind::kLength},
                                                          {"layer", InputKind::kLayer}}};
constexpr std::array<Named<OutputKind>, 5> kOutputKinds = {{{"output", OutputKind::kOutput},
                                                            {"saved", OutputKind::kSaved},
                                                            {"gradient", OutputKind::kGradient},
                                                            {"update", OutputKind::kUpdate},
                                                            {"loss", OutputKind::kLoss}}};
constexpr std::array<Named<LayoutName>, 1> kLayouts = {{{"strided", LayoutName::kStrided}}};
constexpr std::array<Named<MemoryFormatName>, 3> kMemoryFormats = {
    {{"contiguous_format", MemoryFormatName::kContiguous},
     {"preserve_format", MemoryFormatName::kPreserve},
     {"channels_last", MemoryFormatName::kChannelsLast}}};

// What a phase may read and make besides slots, the number of samples, the length of sequences, the
// number of the layer, and operations' results.
bool Reads(Phase phase, InputKind kind) {
  switch (kind) {
    case InputKind::kSlot:
    case InputKind::kSamples:
    case InputKind::kLength:
    case InputKind::kLayer:
      return true;
    case InputKind::kSaved:
      return phase == Phase::kBackward;
    case InputKind::kTangent:
      return phase == Phase::kBackward || phase == Phase::kFused;
  }
  return false;
}

bool Makes(Phase phase, OutputKind kind) {
  switch (kind) {
    case OutputKind::kOutput:
      return phase == Phase::kForward || phase == Phase::kSaving;
    case OutputKind::kSaved:
      return phase == Phase::kSaving;
    case OutputKind::kGradient:
      return phase == Phase::kBackward || phase == Phase::kFused;
    case OutputKind::kUpdate:
      return phase == Phase::kSaving || phase == Phase::kFused;
    case OutputKind::kLoss:
      return phase == Phase::kFused;
  }
  return false;
}

// Operations on integers, and the number of their arguments.
constexpr std::array<Named<int>, 11> kSymbolic = {{{"sym::size", 2},
                                                   {"sym::stride", 2},
                                                   {"sym::numel", 1},
                                                   {"sym::add", 2},
                                                   {"sym::sub", 2},
                                                   {"sym::mul", 2},
                                                   {"sym::floordiv", 2},
                                                   {"sym::mod", 2},
                                                   {"sym::neg", 1},
                                                   {"sym::max", 2},
                                                   {"sym::min", 2}}};

template <typename T, size_t kCount>
absl::string_view NameOf(T thing, const std::array<Named<T>, kCount>& known) {
  for (const Named<T>& entry : known) {
    if (entry.thing == thing) return entry.name;
  }
  return "?";
}

// JSON has no infinity, and writers differ in how they round: floating-point numbers are texts.
double ReadFloat(const JsonField& field) {
  const std::string text = field.Text();
  double number = 0;
  if (field.ok() && !absl::SimpleAtod(text, &number)) {
    field.Wrong(absl::StrCat("'", text.substr(0, 100), "' is no number"));
  }
  return number;
}

model::ExportedTensor ReadSlot(const JsonField& field) {
  field.Only({"dtype", "shape"});
  model::ExportedTensor tensor;
  tensor.dtype = OneOf(field.Get("dtype"), model::kTensorTypes);
  for (const JsonField& extent : field.Get("shape").Items()) {
    tensor.shape.push_back(model::ReadExtent(extent));
  }
  return tensor;
}

class PhaseReader {
 public:
  PhaseReader(const JsonField& field, Phase phase, size_t slots)
      : field_(field), phase_(phase), slots_(static_cast<int>(slots)) {}

  PhaseText Read() {
    field_.Only({"values", "inputs", "ops", "outputs"});
    text_.values = field_.Get("values").Int(0, kMost);
    const std::vector<JsonField> inputs = field_.Get("inputs").Items();
    const std::vector<JsonField> ops = field_.Get("ops").Items();
    CountValues(inputs, ops);
    if (!field_.ok()) return {};
    made_.resize(static_cast<size_t>(text_.values));
    for (const JsonField& input : inputs) ReadInput(input);
    for (const JsonField& op : ops) ReadOperation(op);
    for (const JsonField& output : field_.Get("outputs").Items()) ReadOutput(output);
    return std::move(text_);
  }

 private:
  // Each value is made once: so many there have to be, and nothing larger is taken before.
  void CountValues(const std::vector<JsonField>& inputs, const std::vector<JsonField>& ops) {
    size_t made = inputs.size();
    for (const JsonField& op : ops) {
      for (const JsonField& result : op.Get("results").Items()) {
        if (result.Int(kUnusedResult, kMost) >= 0) ++made;
      }
      if (!field_.ok()) return;
    }
    if (field_.ok() && made != static_cast<size_t>(text_.values)) {
      field_.Get("values").Wrong(
          absl::StrCat("is ", text_.values, ", but inputs and operations make ", made));
    }
  }

  int NewValue(const JsonField& field, int least) {
    const int value = field.Int(least, text_.values - 1);
    if (!field.ok() || value < 0) return value;
    if (made_[static_cast<size_t>(value)]) {
      field.Wrong(absl::StrCat("value ", value, " is made twice"));
    }
    made_[static_cast<size_t>(value)] = true;
    return value;
  }

  int KnownValue(const JsonField& field) {
    const int value = field.Int(0, std::max(text_.values - 1, 0));
    if (field.ok() && (value >= text_.values || !made_[static_cast<size_t>(value)])) {
      field.Wrong(absl::StrCat("value ", value, " is not made before"));
    }
    return value;
  }

  void ReadInput(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"value", "kind", "index"});
    PhaseInput input;
    input.kind = OneOf(field.Get("kind"), kInputKinds);
    if (field.ok() && !Reads(phase_, input.kind)) {
      field.Get("kind").Wrong(absl::StrCat("not in the phase ", ToString(phase_)));
    }
    const bool alone =
        IsNumber(input.kind) || (input.kind == InputKind::kTangent && phase_ == Phase::kFused);
    const bool slot = input.kind == InputKind::kSlot;
    input.index = field.Get("index").Int(0, alone ? 0 : slot ? slots_ - 1 : kMost);
    input.value = NewValue(field.Get("value"), 0);
    if (field.ok() && !inputs_.emplace(input.kind, input.index).second) {
      field.Get("index").Wrong("is there twice for that kind");
    }
    text_.inputs.push_back(input);
  }

  void ReadOutput(const JsonField& field) {
    if (!field.ok()) return;
    field.Only({"value", "kind", "index"});
    PhaseOutput output;
    output.kind = OneOf(field.Get("kind"), kOutputKinds);
    if (field.ok() && !Makes(phase_, output.kind)) {
      field.Get("kind").Wrong(absl::StrCat("not in the phase ", ToString(phase_)));
    }
    const bool slot = output.kind == OutputKind::kGradient || output.kind == OutputKind::kUpdate;
    const bool alone = output.kind == OutputKind::kLoss;
    output.index = field.Get("index").Int(0, alone ? 0 : slot ? slots_ - 1 : kMost);
    output.value = KnownValue(field.Get("value"));
    if (field.ok() && !outputs_.emplace(output.kind, output.index).second) {
      field.Get("index").Wrong("is there twice for that kind");
    }
    text_.outputs.push_back(output);
  }

  void ReadOperation(const JsonField& field) {
    if (!field.ok()) return;
    Operation op;
    op.name = field.Get("op").Text();
    const bool symbolic = absl::StartsWith(op.name, "sym::");
    field.Only({"op", "overload", "arguments", "results", "list"});
    if (field.ok() && !symbolic && !absl::StartsWith(op.name, "aten::") &&
        !IsOwnOperator(op.name)) {
      field.Get("op").Wrong(absl::StrCat("'", op.name.substr(0, 100),
                                         "' is not of the namespaces aten and sym, nor ",
                                         absl::StrJoin(kOwnOperators, " or ")));
    }
    op.overload = field.Get("overload").Text();
    op.returns_list = field.Has("list") && field.Get("list").Flag();
    const std::vector<JsonField> arguments = field.Get("arguments").Items();
    for (const JsonField& argument : arguments) {
      if (!field.ok()) return;
      op.arguments.push_back(ReadArgument(argument, /*in_list=*/false));
    }
    // Only after the arguments, so that no operation reads what it makes.
    const std::vector<JsonField> results = field.Get("results").Items();
    for (const JsonField& result : results) {
      op.results.push_back(NewValue(result, kUnusedResult));
    }
    if (symbolic) CheckSymbolic(field, op);
    text_.operations.push_back(std::move(op));
  }

  void CheckSymbolic(const JsonField& field, const Operation& op) {
    const auto known = std::find_if(kSymbolic.begin(), kSymbolic.end(),
                                    [&](const Named<int>& entry) { return op.name == entry.name; });
    if (!field.ok()) return;
    if (known == kSymbolic.end()) {
      field.Get("op").Wrong(absl::StrCat("'", op.name.substr(0, 100), "' is not known"));
    } else if (op.arguments.size() != static_cast<size_t>(known->thing)) {
      field.Get("arguments")
          .Wrong(
              absl::StrCat(op.name, " takes ", known->thing, ", here are ", op.arguments.size()));
    } else if (op.results.size() != 1) {
      field.Get("results").Wrong(
          absl::StrCat(op.name, " has one result, here are ", op.results.size()));
    } else if (!op.overload.empty() || op.returns_list) {
      field.Wrong(absl::StrCat(op.name, " has no overloads and returns no list"));
    }
  }

  Argument ReadArgument(const JsonField& field, bool in_list) {
    const std::string source = field.Source();
    if (source == "null") return {};
    if (source[0] == '{') return ReadObject(field);
    if (source[0] != '[') {
      return {
          field.Integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())};
    }
    ArgumentList list;
    // No operator takes lists of lists.
    if (in_list) field.Wrong("a list within a list");
    const std::vector<JsonField> items = field.Items();
    for (const JsonField& item : items) {
      if (!field.ok()) break;
      list.push_back(ReadArgument(item, /*in_list=*/true));
    }
    return {std::move(list)};
  }

  Argument ReadObject(const JsonField& field) {
    const auto is = [&](const char* name) {
      if (!field.Has(name)) return false;
      field.Only({name});
      return true;
    };
    if (is("value")) return {ValueNumber{KnownValue(field.Get("value"))}};
    if (is("float")) return {ReadFloat(field.Get("float"))};
    if (is("bool")) return {field.Get("bool").Flag()};
    if (is("text")) return {field.Get("text").Text()};
    if (is("dtype")) return {OneOf(field.Get("dtype"), model::kTensorTypes)};
    if (is("layout")) return {OneOf(field.Get("layout"), kLayouts)};
    if (is("memory_format")) return {OneOf(field.Get("memory_format"), kMemoryFormats)};
    if (is("device")) {
      OneOf(field.Get("device"), std::array<Named<int>, 1>{{{"default", 0}}});
      return {DefaultDevice()};
    }
    field.Wrong(
        "must have one of the fields value, float, bool, text, dtype, layout, memory_format, "
        "device");
    return {};
  }

  const JsonField& field_;
  const Phase phase_;
  const int slots_;
  PhaseText text_;
  std::vector<bool> made_;
  std::set<std::pair<InputKind, int>> inputs_;
  std::set<std::pair<OutputKind, int>> outputs_;
};

// How many outputs of a kind there are, when their indices are 0, 1, 2, ...; else a mistake.
int CountOutputs(const JsonField& field, const PhaseText& text, OutputKind kind) {
  int count = 0, end = 0;
  for (const PhaseOutput& output : text.outputs) {
    if (output.kind != kind) continue;
    ++count;
    end = std::max(end, output.index + 1);
  }
  if (count != end) {
    field.Wrong(
        absl::StrCat("of kind ", ToString(kind), " must be 0 to ", end - 1, ", are only ", count));
  }
  return count;
}

// That what one phase leaves is what another one finds.
void CheckPhases(const JsonField& phases, const GraphFile& file) {
  if (file.phases.contains(Phase::kFused)) {
    const JsonField outputs = phases.Get("fused").Get("outputs");
    if (CountOutputs(outputs, file.phases.at(Phase::kFused), OutputKind::kLoss) != 1) {
      outputs.Wrong("must have a loss");
    }
    return;
  }
  const JsonField forward = phases.Get("forward").Get("outputs");
  const JsonField saving = phases.Get("saving").Get("outputs");
  const PhaseText& saving_text = file.phases.at(Phase::kSaving);
  const int made = CountOutputs(forward, file.phases.at(Phase::kForward), OutputKind::kOutput);
  const int again = CountOutputs(saving, saving_text, OutputKind::kOutput);
  if (made != again) {
    saving.Wrong(absl::StrCat("of kind output are ", again, ", those of forward are ", made));
  }
  const int saved = CountOutputs(saving, saving_text, OutputKind::kSaved);
  const std::vector<JsonField> inputs = phases.Get("backward").Get("inputs").Items();
  const PhaseText& backward = file.phases.at(Phase::kBackward);
  for (size_t i = 0; i < backward.inputs.size() && phases.ok(); ++i) {
    const PhaseInput& input = backward.inputs[i];
    const bool missing = (input.kind == InputKind::kSaved && input.index >= saved) ||
                         (input.kind == InputKind::kTangent && input.index >= made);
    if (missing) inputs[i].Get("index").Wrong("is nothing that the phase saving makes");
  }
}

void ReadGraphFile(const JsonField& root, GraphFile& file) {
  const int64_t version = root.Get("harmony_graph").Integer(0);
  if (root.ok() && version != kVersion) {
    root.Get("harmony_graph")
        .Wrong(absl::StrCat("is ", version, ", a file of another version than ", kVersion,
                            ", which this program reads; export the model again"));
  }
  root.Only({"harmony_graph", "slots", "phases"});
  for (const JsonField& slot : root.Get("slots").Items()) {
    if (!root.ok()) return;
    file.slots.push_back(ReadSlot(slot));
  }
  const JsonField phases = root.Get("phases");
  if (phases.Has("fused")) {
    phases.Only({"fused"});
  } else {
    phases.Only({"forward", "saving", "backward"});
  }
  for (const Named<Phase>& entry : kPhases) {
    const bool fused = entry.thing == Phase::kFused;
    if (!root.ok() || phases.Has("fused") != fused) continue;
    const JsonField phase = phases.Get(entry.name.data());
    file.phases[entry.thing] = PhaseReader(phase, entry.thing, file.slots.size()).Read();
  }
  if (root.ok()) CheckPhases(phases, file);
}

}  // namespace

absl::string_view ToString(Phase phase) { return NameOf(phase, kPhases); }
absl::string_view ToString(OutputKind kind) { return NameOf(kind, kOutputKinds); }

absl::StatusOr<GraphFile> ParseGraphFile(absl::string_view text, absl::string_view where) {
  GraphFile file;
  HARMONY_RETURN_IF_ERROR(
      document::ReadJson(text, where, [&](const JsonField& root) { ReadGraphFile(root, file); }));
  return file;
}

}  // namespace harmony::graphs
