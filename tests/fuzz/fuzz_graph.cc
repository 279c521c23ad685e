// Graph files of exported models: whatever is accepted makes each value once and before its use.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/graphs/graph_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace harmony;

void CheckUses(const graphs::ArgumentList& arguments, const std::vector<bool>& made) {
  for (const graphs::Argument& argument : arguments) {
    if (const auto* use = std::get_if<graphs::ValueNumber>(&argument.content)) {
      FUZZ_CHECK(made.at(static_cast<size_t>(use->value)));
    } else if (const auto* list = std::get_if<graphs::ArgumentList>(&argument.content)) {
      CheckUses(*list, made);
    }
  }
}

void CheckPhase(const graphs::PhaseText& phase, size_t slots) {
  std::vector<bool> made(static_cast<size_t>(phase.values));
  size_t count = 0;
  const auto make = [&](int value) {
    if (value == graphs::kUnusedResult) return;
    FUZZ_CHECK(!made.at(static_cast<size_t>(value)));
    made[static_cast<size_t>(value)] = true;
    ++count;
  };
  for (const graphs::PhaseInput& input : phase.inputs) {
    make(input.value);
    if (input.kind == graphs::InputKind::kSlot) {
      FUZZ_CHECK(static_cast<size_t>(input.index) < slots);
    }
  }
  for (const graphs::Operation& operation : phase.operations) {
    CheckUses(operation.arguments, made);
    for (int result : operation.results) make(result);
  }
  FUZZ_CHECK(count == made.size());
  for (const graphs::PhaseOutput& output : phase.outputs) {
    FUZZ_CHECK(made.at(static_cast<size_t>(output.value)));
    FUZZ_CHECK(output.index >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = graphs::ParseGraphFile(text, "graph.json");
  if (!file.ok()) {
    FUZZ_CHECK(!file.status().message().empty());
    return 0;
  }
  FUZZ_CHECK(file->phases.size() == 1 || file->phases.size() == 3);
  for (const auto& [name, phase] : file->phases) CheckPhase(phase, file->slots.size());
  return 0;
}
