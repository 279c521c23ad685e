#include "tests/fake_cuda/config.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace harmony::fake_cuda {
namespace {

template <typename Number>
absl::Status ParseNumber(absl::string_view text, Number& number) {
  if (absl::SimpleAtoi(text, &number)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no number"));
}

absl::Status ParseSize(absl::string_view text, uint64_t& size) {
  HARMONY_ASSIGN_OR_RETURN(const Bytes bytes, ParseBytes(text));
  size = static_cast<uint64_t>(bytes.count());
  return absl::OkStatus();
}

template <typename Value>
absl::Status ParseWord(absl::string_view text,
                       const std::vector<std::pair<absl::string_view, Value>>& words,
                       Value& value) {
  for (const auto& [word, meaning] : words) {
    if (text != word) continue;
    value = meaning;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not known"));
}

absl::StatusOr<std::string> ParseFunction(absl::string_view text,
                                          const std::set<std::string>& functions) {
  const std::string name(absl::StripPrefix(text, "cu"));
  if (functions.count(name) > 0) return name;
  return absl::InvalidArgumentError(absl::StrCat("there is no function '", text, "'"));
}

// "FUNCTION:N:ERROR;FUNCTION:N:ERROR".
absl::Status ParseFailures(absl::string_view text, const std::set<std::string>& functions,
                           std::vector<Failure>& failures) {
  for (const absl::string_view part : absl::StrSplit(text, ';')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, ':');
    if (fields.size() != 3) {
      return absl::InvalidArgumentError(absl::StrCat("'", part, "' is not FUNCTION:N:ERROR"));
    }
    Failure failure;
    HARMONY_ASSIGN_OR_RETURN(failure.function, ParseFunction(fields[0], functions));
    HARMONY_RETURN_IF_ERROR(ParseNumber(fields[1], failure.call));
    int result = 0;
    HARMONY_RETURN_IF_ERROR(ParseNumber(fields[2], result));
    failure.result = static_cast<CUresult>(result);
    failures.push_back(failure);
  }
  return absl::OkStatus();
}

absl::Status ParseEntry(absl::string_view key, absl::string_view value,
                        const std::set<std::string>& functions, Config& config) {
  if (key == "devices") {
    HARMONY_RETURN_IF_ERROR(ParseNumber(value, config.devices));
    if (config.devices >= 0 && config.devices <= kMostDevices) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("from 0 to ", kMostDevices));
  }
  if (key == "memory") return ParseSize(value, config.memory);
  if (key == "context") return ParseSize(value, config.context);
  if (key == "capability") return ParseNumber(value, config.capability);
  if (key == "max_delay_us") return ParseNumber(value, config.max_delay_us);
  if (key == "seed") return ParseNumber(value, config.seed);
  if (key == "driver") return ParseNumber(value, config.driver);
  if (key == "peers") return ParseWord<bool>(value, {{"0", false}, {"1", true}}, config.peers);
  if (key == "pageable") {
    return ParseWord<bool>(value, {{"refuse", false}, {"stage", true}}, config.stage_pageable);
  }
  if (key == "races") {
    return ParseWord<Races>(
        value,
        {{"off", Races::kOff}, {"threads", Races::kThreads}, {"processes", Races::kProcesses}},
        config.races);
  }
  if (key == "shared") {
    config.shared = std::string(value);
    return absl::OkStatus();
  }
  if (key == "fail") return ParseFailures(value, functions, config.failures);
  if (key == "lacks") {
    HARMONY_ASSIGN_OR_RETURN(const std::string name, ParseFunction(value, functions));
    config.lacking.insert(name);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("there is no such key");
}

}  // namespace

absl::StatusOr<Config> ParseConfig(absl::string_view text, const std::set<std::string>& functions) {
  Config config;
  for (const absl::string_view entry : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    HARMONY_RETURN_IF_ERROR_CTX(ParseEntry(parts.first, parts.second, functions, config),
                                absl::StrCat("FAKE_CUDA: ", entry));
  }
  return config;
}

}  // namespace harmony::fake_cuda
