#include <ATen/core/enum_tag.h>
#include <c10/core/TensorOptions.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/graphs/own_operators.h"
#include "worker/graphs/graph.h"
#include "worker/graphs/own_operators.h"

namespace harmony::worker {
namespace {

// Operators that write their running statistics although their schemas do not say so, unless the
// argument `training` is false.
constexpr std::array<absl::string_view, 7> kSilentWriters = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::instance_norm",
    "aten::batch_norm_update_stats",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts"};

// The constant that the argument of that name is; null when there is none.
const c10::IValue* ConstantOf(absl::string_view name, const c10::FunctionSchema& schema,
                              const std::vector<BoundArgument>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].name() == name) return arguments[i].constant();
  }
  return nullptr;
}

// Why an operator may not be called with these arguments; nothing when it may.
std::optional<std::string> Forbidden(const c10::OperatorHandle& op,
                                     const std::vector<BoundArgument>& arguments,
                                     c10::Device device) {
  const c10::FunctionSchema& schema = op.schema();
  const c10::IValue* const training = ConstantOf("training", schema, arguments);
  const c10::IValue* const statistics = ConstantOf("running_mean", schema, arguments);
  const c10::IValue* const dropout = ConstantOf("dropout_p", schema, arguments);
  if (schema.is_mutable() || op.hasTag(at::Tag::maybe_aliasing_or_mutating)) {
    return "writes its arguments";
  }
  const bool evaluates = training != nullptr && training->isBool() && !training->toBool();
  const bool none = statistics != nullptr && statistics->isNone();
  if (absl::c_linear_search(kSilentWriters, schema.name()) && !evaluates && !none) {
    return "writes its running statistics";
  }
  // Attention is tagged for its dropout, which a graph may switch off.
  const bool keeps_all = dropout != nullptr && dropout->isDouble() && dropout->toDouble() == 0;
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !keeps_all) return "draws random numbers";
  if (schema.name() == "aten::from_file") return "reads files";
  if (!op.hasComputedKernelForDispatchKey(
          c10::computeDispatchKey(std::nullopt, std::nullopt, device))) {
    return absl::StrCat("has no kernel for the device ", device.str());
  }
  return std::nullopt;
}

// Operators whose results but the first are statistics of their rows, too small to be lent for.
constexpr std::array<absl::string_view, 10> kWithStatistics = {
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    graphs::kAttention,
    graphs::kBatchNorm,
    graphs::kGroupNorm,
    graphs::kLayerNorm,
    graphs::kRmsNorm};

// Operators whose result is their first argument's memory in another shape.
constexpr std::array<absl::string_view, 2> kReshaping = {"aten::view", "aten::_unsafe_view"};

bool IsTensorList(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

// Turns a phase into steps, first forward (schemas, kinds of values), then backward (what is
// needed, where for the last time).
class Graph::Binder {
 public:
  Binder(const graphs::PhaseText& text, graphs::Phase phase, const Options& options)
      : text_(text),
        options_(options),
        kinds_(static_cast<size_t>(text.values), ValueKind::kTensor),
        needed_(static_cast<size_t>(text.values)) {
    graph_.where_ = absl::StrCat(options.where, ": phases.", ToString(phase));
    graph_.saving_needs_ = options.saved_needs;
    graph_.value_count_ = static_cast<size_t>(text.values);
  }

  absl::StatusOr<Graph> Bind() {
    RegisterOwnOperators();
    for (const graphs::PhaseInput& input : text_.inputs) {
      if (graphs::IsNumber(input.kind)) KindOf(input.value) = ValueKind::kInteger;
    }
    std::vector<Step> steps;
    for (size_t i = 0; i < text_.operations.size(); ++i) {
      Step step;
      step.position = static_cast<int>(i);
      HARMONY_RETURN_IF_ERROR_CTX(BindOperation(text_.operations[i], step),
                                  absl::StrCat(graph_.where_, ".ops[", i, "]"));
      steps.push_back(std::move(step));
    }
    HARMONY_RETURN_IF_ERROR(SelectOutputs());
    SelectSteps(std::move(steps));
    PlaceOutputs();
    FindLastNeeds();
    return std::move(graph_);
  }

 private:
  ValueKind& KindOf(int value) { return kinds_[static_cast<size_t>(value)]; }

  absl::Status BindOperation(const graphs::Operation& op, Step& step) {
    step.results = op.results;
    step.returns_list = op.returns_list;
    if (const std::optional<IntegerOp> integer = ParseIntegerOp(op.name)) {
      return BindInteger(op, *integer, step);
    }
    const std::optional<c10::OperatorHandle> handle =
        c10::Dispatcher::singleton().findSchema({op.name, op.overload});
    if (!handle.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("LibTorch ", TORCH_VERSION, " has no operator '", op.name.substr(0, 100),
                       "' with the overload '", op.overload.substr(0, 100),
                       "'; the graph was made by PyTorch ", options_.torch));
    }
    step.callee = *handle;
    HARMONY_RETURN_IF_ERROR_CTX(BindArguments(op, handle->schema(), step), NameOf(*handle));
    if (const auto reason = Forbidden(*handle, step.arguments, options_.device)) {
      return absl::InvalidArgumentError(absl::StrCat(NameOf(*handle), " ", *reason));
    }
    return WithContext(BindResults(op, handle->schema()), NameOf(*handle));
  }

  absl::Status BindInteger(const graphs::Operation& op, IntegerOp integer, Step& step) {
    step.callee = integer;
    for (size_t i = 0; i < op.arguments.size(); ++i) {
      const bool tensor = ArgumentKind(integer, i) == ValueKind::kTensor;
      const auto* use = std::get_if<graphs::ValueNumber>(&op.arguments[i].content);
      // A number is no tensor here, though it could be wrapped as one.
      if (tensor && (use == nullptr || KindOf(use->value) != ValueKind::kTensor)) {
        return absl::InvalidArgumentError(absl::StrCat("arguments[", i, "]: must be a tensor"));
      }
      const c10::TypePtr type =
          tensor ? c10::TypePtr(c10::TensorType::get()) : c10::TypePtr(c10::IntType::get());
      HARMONY_RETURN_IF_ERROR(AddArgument(op, i, type, std::nullopt, step));
    }
    if (op.results[0] >= 0) KindOf(op.results[0]) = ValueKind::kInteger;
    return absl::OkStatus();
  }

  absl::Status BindArguments(const graphs::Operation& op, const c10::FunctionSchema& schema,
                             Step& step) {
    const std::vector<c10::Argument>& expected = schema.arguments();
    if (op.arguments.size() != expected.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes ", expected.size(), " arguments, here are ", op.arguments.size()));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      HARMONY_RETURN_IF_ERROR(AddArgument(op, i, expected[i].real_type(), expected[i].N(), step));
    }
    return absl::OkStatus();
  }

  absl::Status AddArgument(const graphs::Operation& op, size_t i, const c10::TypePtr& type,
                           std::optional<int32_t> length, Step& step) {
    absl::StatusOr<BoundArgument> argument =
        BoundArgument::Bind(op.arguments[i], type, length, kinds_, options_.device);
    if (!argument.ok()) {
      return WithContext(argument.status(), absl::StrCat("arguments[", i, "]"));
    }
    step.arguments.push_back(*std::move(argument));
    return absl::OkStatus();
  }

  absl::Status BindResults(const graphs::Operation& op, const c10::FunctionSchema& schema) {
    const std::vector<c10::Argument>& returns = schema.returns();
    const bool list = returns.size() == 1 && IsTensorList(*returns[0].type());
    if (list != op.returns_list) {
      return absl::InvalidArgumentError(list ? "returns a list of tensors"
                                             : "does not return a list of tensors");
    }
    if (list) return absl::OkStatus();
    if (op.results.size() != returns.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", returns.size(), " results, here are ", op.results.size()));
    }
    for (size_t i = 0; i < returns.size(); ++i) {
      if (op.results[i] < 0) continue;
      const c10::TypeKind kind = returns[i].type()->kind();
      if (kind == c10::TypeKind::IntType) {
        KindOf(op.results[i]) = ValueKind::kInteger;
      } else if (kind != c10::TypeKind::TensorType) {
        return absl::InvalidArgumentError(absl::StrCat("results[", i, "]: is of type ",
                                                       returns[i].type()->str(),
                                                       ", but values are tensors or integers"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SelectOutputs() {
    for (size_t i = 0; i < text_.outputs.size(); ++i) {
      const graphs::PhaseOutput& output = text_.outputs[i];
      if (KindOf(output.value) != ValueKind::kTensor) {
        return absl::InvalidArgumentError(absl::StrCat(graph_.where_, ".outputs[", i, "]: value ",
                                                       output.value, " is no tensor"));
      }
      if (options_.without_outputs && output.kind == graphs::OutputKind::kOutput) continue;
      graph_.outputs_.push_back(output);
      needed_[static_cast<size_t>(output.value)] = true;
    }
    return absl::OkStatus();
  }

  // Keeps the steps that outputs are made from. Going backward, the first use of a value that is
  // met is its last one; an output is used once more, when it is delivered.
  void SelectSteps(std::vector<Step> steps) {
    std::vector<bool> used = needed_;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      bool needed = false;
      for (int& result : step->results) {
        if (result >= 0 && !needed_[static_cast<size_t>(result)]) result = graphs::kUnusedResult;
        needed |= result >= 0;
      }
      if (!needed) continue;
      std::vector<ValueUse*> uses;
      for (BoundArgument& argument : step->arguments) {
        argument.ForEachUse([&](ValueUse& use) { uses.push_back(&use); });
      }
      for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
        const auto value = static_cast<size_t>((*use)->value);
        (*use)->last = !used[value];
        used[value] = needed_[value] = true;
      }
      graph_.steps_.push_back(std::move(*step));
    }
    std::reverse(graph_.steps_.begin(), graph_.steps_.end());
    absl::c_copy_if(
        text_.inputs, std::back_inserter(graph_.inputs_),
        [&](const graphs::PhaseInput& input) { return needed_[static_cast<size_t>(input.value)]; });
  }

  void PlaceOutputs() {
    std::vector<Step*> last(kinds_.size());  // that makes or reads a value
    std::vector<Step*> maker(kinds_.size());
    for (Step& step : graph_.steps_) {
      for (BoundArgument& argument : step.arguments) {
        argument.ForEachUse([&](ValueUse& use) { last[static_cast<size_t>(use.value)] = &step; });
      }
      for (int result : step.results) {
        if (result < 0) continue;
        last[static_cast<size_t>(result)] = maker[static_cast<size_t>(result)] = &step;
      }
    }
    for (const graphs::PhaseOutput& output : graph_.outputs_) {
      Step* step = last[static_cast<size_t>(output.value)];
      (step == nullptr ? graph_.untouched_ : step->finished).push_back(output);
      const int source = SourceOf(output.value, maker);
      Step* const finisher = step;
      step = maker[static_cast<size_t>(source)];
      if (step == nullptr) step = finisher;
      if (step != nullptr) {
        graph_.placed_.emplace_back(output, static_cast<int>(step - graph_.steps_.data()));
      }
      if (maker[static_cast<size_t>(source)] == nullptr) continue;
      // What is kept lives longer than what is handed on, so its place comes first.
      const bool first = output.kind == graphs::OutputKind::kSaved;
      step->made.insert(first ? step->made.begin() : step->made.end(), {source, output});
    }
  }

  // Whether a result may be the memory of a tensor that the operation is given.
  static bool MakesViews(const c10::OperatorHandle& op) {
    return absl::c_linear_search(kReshaping, op.operator_name().name) ||
           absl::c_any_of(op.schema().returns(),
                          [](const c10::Argument& made) { return made.alias_info() != nullptr; });
  }

  // Going backward, all that needs a value's memory is known when its maker is met.
  void FindLastNeeds() {
    std::vector<int> last_need(kinds_.size());
    for (const graphs::PhaseOutput& output : graph_.outputs_) {
      int& need = last_need[static_cast<size_t>(output.value)];
      need = std::max(need, graph_.NeedOf(output));
    }
    for (size_t i = graph_.steps_.size(); i-- > 0;) {
      Step& step = graph_.steps_[i];
      step.last_need = static_cast<int>(i);
      const auto* const op = std::get_if<c10::OperatorHandle>(&step.callee);
      const bool first_counts =
          op != nullptr && absl::c_linear_search(kWithStatistics, op->operator_name().name);
      for (const int result : step.results) {
        if (result < 0 || (first_counts && result != step.results[0])) continue;
        step.last_need = std::max(step.last_need, last_need[static_cast<size_t>(result)]);
      }
      const bool views = op != nullptr && MakesViews(*op);
      for (BoundArgument& argument : step.arguments) {
        argument.ForEachUse([&](ValueUse& use) {
          int& need = last_need[static_cast<size_t>(use.value)];
          need = std::max(need, views ? step.last_need : static_cast<int>(i));
        });
      }
    }
    for (const graphs::PhaseInput& input : graph_.inputs_) {
      if (input.kind != graphs::InputKind::kSaved) continue;
      const auto index = static_cast<size_t>(input.index);
      if (index >= graph_.saved_needs_.size()) graph_.saved_needs_.resize(index + 1);
      graph_.saved_needs_[index] = last_need[static_cast<size_t>(input.value)];
    }
  }

  // The value whose whole memory a value is another view of: itself if of none.
  static int SourceOf(int value, const std::vector<Step*>& maker) {
    for (;;) {
      Step* const step = maker[static_cast<size_t>(value)];
      const auto* op = step == nullptr ? nullptr : std::get_if<c10::OperatorHandle>(&step->callee);
      if (op == nullptr || !absl::c_linear_search(kReshaping, op->operator_name().name)) {
        return value;
      }
      step->arguments[0].ForEachUse([&](const ValueUse& use) { value = use.value; });
    }
  }

  const graphs::PhaseText& text_;
  const Options& options_;
  Graph graph_;
  std::vector<ValueKind> kinds_;
  std::vector<bool> needed_;
};

absl::StatusOr<Graph> Graph::Bind(const graphs::PhaseText& text, graphs::Phase phase,
                                  const Options& options) {
  try {
    return Binder(text, phase, options).Bind();
  } catch (...) {
    return StatusOfException(options.where);
  }
}

}  // namespace harmony::worker
