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
#include "worker/device/lent_places.h"
#include "worker/graphs/arguments.h"
#include "worker/graphs/graph_file.h"
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
  };

  // InvalidArgument names the place of an operation or argument that is wrong: an operator that
  // this LibTorch lacks or has no kernel of for the device, one that writes its arguments or draws
  // random numbers, arguments or results that do not fit its schema.
  static absl::StatusOr<Graph> Bind(const PhaseText& text, Phase phase, const Options& options);

  // What a run has to be given: the inputs that something is made from.
  const std::vector<PhaseInput>& inputs() const { return inputs_; }
  const std::vector<PhaseOutput>& outputs() const { return outputs_; }

  // Gets each output once, when no operation needs it any more; an undefined tensor only for a
  // gradient: it is zero. May throw what LibTorch does.
  using Deliver = absl::FunctionRef<void(const PhaseOutput& output, at::Tensor tensor)>;
  // `inputs` in the order of inputs(): tensors, and the number of samples. A value is freed with
  // the operation that needs it last, an input as well where the caller holds no other reference.
  // Errors are those of StatusOfException and name the operation.
  absl::Status Run(std::vector<c10::IValue> inputs, Deliver deliver) const;
  // Where an output belongs: a contiguous tensor over memory that nothing else is put into until it
  // is delivered, or an undefined one. The output is then made there where that can be, and copying
  // it is left out (PutInto); what it is given has to outlive it. Asked at the beginning, for the
  // place is lent to temporaries until it is needed (LentPlaces), and again before it is made.
  using PlaceOf = absl::FunctionRef<at::Tensor(const PhaseOutput& output)>;
  // `idle`: contiguous tensors over memory that nothing is put into during the run; lent as well.
  absl::Status Run(std::vector<c10::IValue> inputs, Deliver deliver, PlaceOf place_of,
                   absl::Span<const at::Tensor> idle = {}) const;

 private:
  struct Step {
    int position = 0;  // in the file
    std::variant<IntegerOp, c10::OperatorHandle> callee;
    std::vector<BoundArgument> arguments;
    std::vector<int> results;
    bool returns_list = false;
    std::vector<PhaseOutput> finished;  // outputs that nothing needs after it
    // Outputs that are a result of it, in the order in which they may have its place: the result
    // itself, or another view of its whole memory.
    struct MadeOutput {
      int result = 0;
      PhaseOutput output;
    };
    std::vector<MadeOutput> made;
    // The position among the steps of the last one that needs the memory of a result of this one,
    // as far as schemas tell what is a view; LentPlaces::kNever where it is kept beyond the run.
    int last_need = 0;
  };
  class Binder;

  Graph() = default;
  static std::string NameOf(const c10::OperatorHandle& op);
  // Whether what is delivered is kept as it is beyond the run, and not copied or added elsewhere.
  static bool LeavesRun(const PhaseOutput& output);
  static bool OutlivesPlace(const PhaseOutput& output, const c10::IValue& value,
                            const LentPlaces& lent);
  // Lends the memory that is idle to begin with.
  void Lend(PlaceOf place_of, absl::Span<const at::Tensor> idle, LentPlaces& lent) const;
  // Clears the places of what is made by this step.
  void Vacate(int step, std::vector<c10::IValue>& values, LentPlaces& lent) const;
  void Execute(const Step& step, std::vector<c10::IValue>& values, torch::jit::Stack& stack) const;
  void ExecuteInPlace(const Step& step, std::vector<c10::IValue>& values, torch::jit::Stack& stack,
                      PlaceOf place_of, LentPlaces& lent) const;
  std::string WhereIs(const Step* step) const;

  std::string where_;
  size_t value_count_ = 0;
  std::vector<PhaseInput> inputs_;
  std::vector<PhaseOutput> outputs_;
  std::vector<PhaseOutput> untouched_;  // outputs that no operation needs
  // The others, and the position of the first step by which something may be put in their places.
  std::vector<std::pair<PhaseOutput, int>> placed_;
  std::vector<Step> steps_;
};

}  // namespace harmony::worker
