#pragma once

// Arguments of operations, made ready for the stack of a boxed call: checked against the type that
// the operator's schema asks for, constants made once.

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/graphs/graph_file.h"

namespace harmony::worker {

enum class ValueKind { kTensor, kInteger };

// A value that an argument, or an element of one, reads.
struct ValueUse {
  int value = 0;
  // Nothing reads the value after this: the stack takes it over, so that it is freed with the
  // operation's arguments.
  bool last = false;
  enum class As {
    kItself,
    kWrappedNumber,  // an integer where a tensor is due: as Python's, it does not promote types
    kFloat,          // an integer where a floating-point number is due
  } as = As::kItself;
};

// Immutable but for ForEachUse. One thread at a time.
class BoundArgument {
 public:
  // `kinds` by value. `type` is a schema's own ("SymInt", not what that is boxed as); `length` that
  // of a list of fixed length, which one number may stand for. InvalidArgument says what is wrong,
  // not where. Devices become `device`.
  static absl::StatusOr<BoundArgument> Bind(const graphs::Argument& argument,
                                            const c10::TypePtr& type, std::optional<int32_t> length,
                                            absl::Span<const ValueKind> kinds, c10::Device device);

  // Puts the argument on the stack; `values` by number. Throws c10::Error when a value is missing.
  void Push(std::vector<c10::IValue>& values, torch::jit::Stack& stack) const;

  // In the order in which Push reads them.
  void ForEachUse(absl::FunctionRef<void(ValueUse& use)> visit);

  // The constant that it is; null when it is none.
  const c10::IValue* constant() const { return std::get_if<c10::IValue>(&content_); }

 private:
  // A list of which some elements are values; constants are elements as they are.
  struct List {
    c10::TypePtr element;  // boxed
    std::vector<BoundArgument> items;
  };
  using Content = std::variant<c10::IValue, ValueUse, List>;
  explicit BoundArgument(Content content) : content_(std::move(content)) {}

  class Binder;
  c10::IValue Make(std::vector<c10::IValue>& values) const;

  Content content_;
};

}  // namespace harmony::worker
