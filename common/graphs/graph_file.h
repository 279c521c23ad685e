#pragma once

// What the file of a layer's graphs says (docs/model_format.md), parsed and checked as far as that
// goes without knowing operators: which values there are, that each is made once and before it is
// used, and that the phases fit each other. No LibTorch here: graph.h makes it runnable.

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/model/exported_model.h"

namespace harmony::graphs {

// What a layer does with its graphs: see the table in docs/model_format.md.
enum class Phase { kForward, kSaving, kBackward, kFused };
absl::string_view ToString(Phase phase);

enum class InputKind { kSlot, kSaved, kTangent, kSamples, kLength, kLayer };
// Whether it is a number, of which there is one, rather than a tensor.
inline bool IsNumber(InputKind kind) {
  return kind == InputKind::kSamples || kind == InputKind::kLength || kind == InputKind::kLayer;
}
enum class OutputKind { kOutput, kSaved, kGradient, kUpdate, kLoss };
absl::string_view ToString(OutputKind kind);

// A value that a phase begins with, and one that it is run for. `index` counts among those of its
// kind, as the format says.
struct PhaseInput {
  int value = 0;
  InputKind kind = InputKind::kSlot;
  int index = 0;
};
struct PhaseOutput {
  int value = 0;
  OutputKind kind = OutputKind::kOutput;
  int index = 0;
};

// An argument of an operation, as it is written.
struct Argument;
struct ValueNumber {
  int value = 0;
};
struct DefaultDevice {};
enum class LayoutName { kStrided };
enum class MemoryFormatName { kContiguous, kPreserve, kChannelsLast };
using ArgumentList = std::vector<Argument>;
struct Argument {
  // std::monostate: null.
  std::variant<std::monostate, ValueNumber, int64_t, double, bool, std::string, DType,
               DefaultDevice, LayoutName, MemoryFormatName, ArgumentList>
      content;
};

inline constexpr int kUnusedResult = -1;

struct Operation {
  std::string name;  // "aten::addmm", "sym::mul"
  std::string overload;
  std::vector<Argument> arguments;
  std::vector<int> results;  // values, or kUnusedResult
  bool returns_list = false;
};

struct PhaseText {
  int values = 0;
  std::vector<PhaseInput> inputs;
  std::vector<Operation> operations;
  std::vector<PhaseOutput> outputs;
};

struct GraphFile {
  // The types and shapes of the slots, without names.
  std::vector<model::ExportedTensor> slots;
  // The last layer has kFused, all others the other three.
  std::map<Phase, PhaseText> phases;
};

// InvalidArgument, beginning with `where`, names the field: "phases.backward.ops[12].results[0]".
// What is held is proportional to the text.
absl::StatusOr<GraphFile> ParseGraphFile(absl::string_view text, absl::string_view where);

}  // namespace harmony::graphs
