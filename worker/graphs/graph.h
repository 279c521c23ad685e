#pragma once

// One phase of a layer's graphs, bound to the operators of this LibTorch: what is left to do for a
// run is to call them, one after the other.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/graphs/graph_file.h"
#include "worker/device/lent_places.h"
#include "worker/graphs/arguments.h"
#include "worker/graphs/integers.h"

namespace harmony::worker {

// The Status of the exception that is being handled, its message behind `where`: ResourceExhausted
// when the workspace is too small, OutOfRange when an index is, else Internal. REQUIRES: called
// within a catch block.
absl::Status StatusOfException(absl::string_view where);

// Immutable: several layers may share one. One thread at a time runs it.
class Graph {
 public:
  struct Options {
    std::string where;  // the file and what leads to it, which messages begin with
    std::string torch;  // the version that made it
    c10::Device device = c10::Device(c10::kCPU);
    // Leaves out the outputs of kind kOutput, and the operations that nothing else needs.
    bool without_outputs = false;
    // Of a phase that saves: saved_needs() of the backward that reads it. Empty: all is needed for
    // good.
    std::vector<int> saved_needs;
  };

  // InvalidArgument names the place of an operation or argument that is wrong: an operator that
  // this LibTorch lacks or has no kernel of for the device, one that writes its arguments or draws
  // random numbers, arguments or results that do not fit its schema.
  static absl::StatusOr<Graph> Bind(const graphs::PhaseText& text, graphs::Phase phase,
                                    const Options& options);

  // What a run has to be given: the inputs that something is made from.
  const std::vector<graphs::PhaseInput>& inputs() const { return inputs_; }
  const std::vector<graphs::PhaseOutput>& outputs() const { return outputs_; }
  // By the number of what was saved: the last step that needs the memory of that input.
  const std::vector<int>& saved_needs() const { return saved_needs_; }
  // The outputs that a step makes, and the first step by which something may be put in the place of
  // each.
  const std::vector<std::pair<graphs::PhaseOutput, int>>& placed() const { return placed_; }

  // Gets each output once, when no operation needs it any more; an undefined tensor only for a
  // gradient: it is zero. May throw what LibTorch does.
  using Deliver = absl::FunctionRef<void(const graphs::PhaseOutput& output, at::Tensor tensor)>;
  // `inputs` in the order of inputs(): tensors, and the number of samples. A value is freed with
  // the operation that needs it last, an input as well where the caller holds no other reference.
  // Errors are those of StatusOfException and name the operation.
  absl::Status Run(std::vector<c10::IValue> inputs, Deliver deliver) const;
  // Where an output belongs: a contiguous tensor over memory that nothing else is put into until it
  // is delivered, or an undefined one. The output is then made there where that can be, and copying
  // it is left out (PutInto); what it is given has to outlive it. Asked at the beginning, for the
  // place is lent to temporaries until it is needed (LentPlaces), and again before it is made.
  using PlaceOf = absl::FunctionRef<at::Tensor(const graphs::PhaseOutput& output)>;
  // A place that a later run puts something into, by that one's step `needed_at`.
  struct LaterPlace {
    DeviceTensor place;
    int needed_at = 0;
  };
  // `lent`: places from before, null where there are none; what those hold is deliver's to free
  // before they are needed. Of those in `later` that run's needs are known: what is saved may stay
  // there until its last need in that run, and is among that one's inputs.
  absl::Status Run(std::vector<c10::IValue> inputs, Deliver deliver, PlaceOf place_of,
                   LentPlaces* lent = nullptr, absl::Span<const LaterPlace> later = {}) const;

 private:
  struct Step {
    int position = 0;  // in the file
    std::variant<IntegerOp, c10::OperatorHandle> callee;
    std::vector<BoundArgument> arguments;
    std::vector<int> results;
    bool returns_list = false;
    std::vector<graphs::PhaseOutput> finished;  // outputs that nothing needs after it
    // Outputs that are a result of it, in the order in which they may have its place: the result
    // itself, or another view of its whole memory.
    struct MadeOutput {
      int result = 0;
      graphs::PhaseOutput output;
    };
    std::vector<MadeOutput> made;
    // The position among the steps of the last one that needs the memory of a result of this one,
    // as far as schemas tell what is a view; beyond the run, NeedOf.
    int last_need = 0;
  };
  class Binder;

  Graph() = default;
  static std::string NameOf(const c10::OperatorHandle& op);
  // The last time at which the memory of what is delivered is needed: of what is copied or added
  // elsewhere none but now, of what is saved one of the backward (LentPlaces::kLater and on).
  int NeedOf(const graphs::PhaseOutput& output) const;
  bool OutlivesPlace(const graphs::PhaseOutput& output, const c10::IValue& value,
                     const LentPlaces& lent) const;
  // Lends the memory that is idle to begin with.
  void Lend(PlaceOf place_of, absl::Span<const LaterPlace> later, LentPlaces& lent) const;
  // Clears the places of what is made by this step.
  void Vacate(int step, std::vector<c10::IValue>& values, LentPlaces& lent) const;
  void Execute(const Step& step, std::vector<c10::IValue>& values, torch::jit::Stack& stack) const;
  void ExecuteInPlace(const Step& step, std::vector<c10::IValue>& values, torch::jit::Stack& stack,
                      PlaceOf place_of, LentPlaces& lent) const;
  std::string WhereIs(const Step* step) const;

  std::string where_;
  size_t value_count_ = 0;
  std::vector<graphs::PhaseInput> inputs_;
  std::vector<graphs::PhaseOutput> outputs_;
  std::vector<graphs::PhaseOutput> untouched_;  // outputs that no operation needs
  std::vector<std::pair<graphs::PhaseOutput, int>> placed_;
  std::vector<Step> steps_;
  std::vector<int> saved_needs_;   // of what this phase reads
  std::vector<int> saving_needs_;  // of what it saves, Options::saved_needs
};

}  // namespace harmony::worker
