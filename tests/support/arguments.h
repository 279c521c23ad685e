#pragma once

// Arguments of test programs beside GoogleTest's own: what replays one seed, or tries more of them.

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace harmony::testing_support {

// `--name=NUMBER` sets the number, `--name` the switch.
struct Argument {
  std::string name;
  uint64_t* number = nullptr;
  bool* on = nullptr;
};

inline bool TakeArgument(absl::string_view text, std::initializer_list<Argument> known) {
  for (const Argument& argument : known) {
    const std::string flag = "--" + argument.name;
    if (argument.on != nullptr && text == flag) return *argument.on = true;
    if (argument.number == nullptr || !absl::StartsWith(text, flag + "=")) continue;
    return absl::SimpleAtoi(text.substr(flag.size() + 1), argument.number);
  }
  return false;
}

// False, and a line on stderr, for one that is not known.
inline bool ReadArguments(int argc, char** argv, std::initializer_list<Argument> known) {
  for (int i = 1; i < argc; ++i) {
    if (TakeArgument(argv[i], known)) continue;
    std::fprintf(stderr, "unknown argument %s\n", argv[i]);
    return false;
  }
  return true;
}

// A seed, and the command that replays it alone: for programs that know `first` and `instances`.
inline std::string Replay(absl::string_view program, uint64_t seed) {
  return absl::StrCat("seed ", seed, " (", program, " --first=", seed, " --instances=1)");
}

// What a main() of such a program does: returns its exit code.
inline int RunAllTests(int argc, char** argv, std::initializer_list<Argument> known) {
  ::testing::InitGoogleTest(&argc, argv);
  return ReadArguments(argc, argv, known) ? RUN_ALL_TESTS() : 2;
}

}  // namespace harmony::testing_support
