#include "worker/graphs/graph.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace harmony::worker {
namespace {

// The same numbers with the same strides, for operations choose by them, in memory of their own.
at::Tensor MovedOut(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor.clone();
  int64_t extent = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.as_strided({extent}, {1}, tensor.storage_offset())
      .clone()
      .as_strided(tensor.sizes(), tensor.strides(), 0);
}

}  // namespace

absl::Status StatusOfException(absl::string_view where) {
  const auto message = [&](const char* what) { return absl::StrCat(where, ": ", what); };
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(message(error.what_without_backtrace()));
  } catch (const c10::IndexError& error) {
    return absl::OutOfRangeError(message(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(message(error.what()));
  }
}

std::string Graph::NameOf(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name);
}

int Graph::NeedOf(const graphs::PhaseOutput& output) const {
  if (output.kind == graphs::OutputKind::kUpdate) return LentPlaces::kNever;
  if (output.kind != graphs::OutputKind::kSaved) return 0;
  const auto index = static_cast<size_t>(output.index);
  return index < saving_needs_.size() ? LentPlaces::kLater + saving_needs_[index]
                                      : LentPlaces::kNever;
}

std::string Graph::WhereIs(const Step* step) const {
  if (step == nullptr) return where_;
  const auto* op = std::get_if<c10::OperatorHandle>(&step->callee);
  return absl::StrCat(where_, ".ops[", step->position, "]", op == nullptr ? "" : ": ",
                      op == nullptr ? "" : NameOf(*op));
}

void Graph::Execute(const Step& step, std::vector<c10::IValue>& values,
                    torch::jit::Stack& stack) const {
  stack.clear();
  for (const BoundArgument& argument : step.arguments) argument.Push(values, stack);
  const auto* op = std::get_if<c10::OperatorHandle>(&step.callee);
  if (op == nullptr) {
    values[static_cast<size_t>(step.results[0])] =
        ComputeInteger(std::get<IntegerOp>(step.callee), stack);
    return;
  }
  op->callBoxed(&stack);
  const auto keep = [&](int result, c10::IValue made) {
    // An undefined tensor is a missing value: for an optional argument, null.
    if (made.isTensor() && !made.toTensor().defined()) made = c10::IValue();
    values[static_cast<size_t>(result)] = std::move(made);
  };
  if (!step.returns_list) {
    for (size_t i = 0; i < step.results.size(); ++i) {
      if (step.results[i] >= 0) keep(step.results[i], std::move(stack[i]));
    }
    return;
  }
  const std::vector<at::Tensor> made = stack[0].toTensorVector();
  TORCH_CHECK(made.size() == step.results.size(), "returned ", made.size(), " tensors, not ",
              step.results.size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (step.results[i] >= 0) keep(step.results[i], made[i]);
  }
}

void Graph::ExecuteInPlace(const Step& step, std::vector<c10::IValue>& values,
                           torch::jit::Stack& stack, PlaceOf place_of, LentPlaces& lent) const {
  std::vector<std::pair<int, at::Tensor>> places;  // by the result that belongs there
  {
    LentPlaces::Lending lending(lent, step.last_need);
    for (const Step::MadeOutput& made : step.made) {
      const bool has_one =
          absl::c_any_of(places, [&](const auto& place) { return place.first == made.result; });
      at::Tensor place = has_one ? at::Tensor() : place_of(made.output);
      if (!place.defined() || place.nbytes() == 0) continue;
      lending.Offer(place.data_ptr());
      places.emplace_back(made.result, std::move(place));
    }
    Execute(step, values, stack);
    stack.clear();
  }
  // Another result of that size may have come first, or the right one in another order of its
  // dimensions.
  for (const int result : step.results) {
    if (result < 0 || !values[static_cast<size_t>(result)].isTensor()) continue;
    const at::Tensor made = values[static_cast<size_t>(result)].toTensor();
    for (const auto& [owner, place] : places) {
      if (made.storage().data() != place.data_ptr()) continue;
      const bool right = owner == result && made.is_contiguous() && made.nbytes() == place.nbytes();
      if (!right) values[static_cast<size_t>(result)] = MovedOut(made);
    }
  }
}

void Graph::Lend(PlaceOf place_of, absl::Span<const LaterPlace> later, LentPlaces& lent) const {
  for (const auto& [output, step] : placed_) {
    const at::Tensor place = place_of(output);
    if (place.defined()) lent.Add(place.mutable_data_ptr(), place.nbytes(), step);
  }
  for (const LaterPlace& place : later) {
    lent.Add(place.place, LentPlaces::kLater + place.needed_at);
  }
}

// A result that is a view although its operator's schema does not say so lives longer than it was
// taken to.
void Graph::Vacate(int step, std::vector<c10::IValue>& values, LentPlaces& lent) const {
  for (c10::IValue& value : values) {
    if (!value.isTensor() || !lent.Lends(value.toTensor().storage().data(), step)) continue;
    value = MovedOut(value.toTensor());
  }
  TORCH_CHECK(lent.Recall(step), "a temporary outlived the operations that need it");
}

// What is saved may lie in its own place; an update has none, and may be a view of an output. All
// else is copied or added elsewhere.
bool Graph::OutlivesPlace(const graphs::PhaseOutput& output, const c10::IValue& value,
                          const LentPlaces& lent) const {
  if (NeedOf(output) < LentPlaces::kLater || !value.isTensor()) return false;
  const void* const data = value.toTensor().storage().data();
  return output.kind == graphs::OutputKind::kUpdate ? lent.Contains(data)
                                                    : lent.Lends(data, NeedOf(output));
}

absl::Status Graph::Run(std::vector<c10::IValue> inputs, Deliver deliver) const {
  return Run(std::move(inputs), deliver, [](const graphs::PhaseOutput&) { return at::Tensor(); });
}

absl::Status Graph::Run(std::vector<c10::IValue> inputs, Deliver deliver, PlaceOf place_of,
                        LentPlaces* lent_before, absl::Span<const LaterPlace> later) const {
  const Step* current = nullptr;
  try {
    c10::InferenceMode no_autograd;
    std::optional<LentPlaces> own;  // outlives the values
    LentPlaces& lent = lent_before != nullptr ? *lent_before : own.emplace();
    const LentPlaces::Work work(lent);
    Lend(place_of, later, lent);
    TORCH_CHECK(inputs.size() == inputs_.size(), "takes ", inputs_.size(), " inputs, here are ",
                inputs.size());
    std::vector<c10::IValue> values(value_count_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      values[static_cast<size_t>(inputs_[i].value)] = std::move(inputs[i]);
    }
    const auto finish = [&](const std::vector<graphs::PhaseOutput>& outputs, int step) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        c10::IValue& value = values[static_cast<size_t>(outputs[i].value)];
        const bool again = std::any_of(
            outputs.begin() + static_cast<std::ptrdiff_t>(i) + 1, outputs.end(),
            [&](const graphs::PhaseOutput& other) { return other.value == outputs[i].value; });
        c10::IValue taken = again ? value : std::move(value);
        if (OutlivesPlace(outputs[i], taken, lent)) taken = MovedOut(taken.toTensor());
        TORCH_CHECK(!taken.isNone() || outputs[i].kind == graphs::OutputKind::kGradient, "the ",
                    std::string(ToString(outputs[i].kind)), " ", outputs[i].index, " is undefined");
        // What is saved may be put in order first.
        const LentPlaces::Lending lending(lent, std::max(step, NeedOf(outputs[i])));
        deliver(outputs[i], taken.isNone() ? at::Tensor() : std::move(taken).toTensor());
      }
    };
    finish(untouched_, 0);
    torch::jit::Stack stack;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const auto now = static_cast<int>(i);
      current = &step;
      if (lent.next_need() <= now) Vacate(now, values, lent);
      if (step.made.empty()) {
        const LentPlaces::Lending lending(lent, step.last_need);
        Execute(step, values, stack);
        stack.clear();
      } else {
        ExecuteInPlace(step, values, stack, place_of, lent);
      }
      finish(step.finished, now);
    }
    return absl::OkStatus();
  } catch (...) {
    return StatusOfException(WhereIs(current));
  }
}

}  // namespace harmony::worker
