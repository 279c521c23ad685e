#pragma once

// How the fake driver behaves: the environment variable FAKE_CUDA, a list "key=value,key=value"
// (README.md has the keys).

#include <cuda.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::fake_cuda {

// The `call`-th call of `function` (from 1; 0: each of them) gives `result`.
struct Failure {
  std::string function;  // Without "cu".
  uint64_t call = 0;
  CUresult result = CUDA_SUCCESS;
};

// Whom the race detector tells apart on the CPU. By process: what one of its threads knows, all do;
// with threads it needs to be told of what orders them (hooks.h).
enum class Races { kOff, kThreads, kProcesses };

inline constexpr int kMostDevices = 16;

struct Config {
  int devices = 1;
  uint64_t memory = uint64_t{1} << 30;  // Of each device.
  uint64_t context = 0;                 // What a context takes of it.
  bool peers = false;                   // Devices can access one another's memory.
  uint64_t max_delay_us = 0;
  uint64_t seed = 0;
  int capability = 90;  // Of compute: 90 is 9.0.
  int driver = CUDA_VERSION;
  bool stage_pageable = false;  // Copies of unpinned host memory are allowed.
  Races races = Races::kProcesses;
  std::string shared;  // A file of the race detectors of several processes; empty: this one only.
  std::vector<Failure> failures;
  std::set<std::string> lacking;  // Functions that this driver does not have, without "cu".
};

// InvalidArgument says what is wrong. `functions`: those that there are, without "cu".
absl::StatusOr<Config> ParseConfig(absl::string_view text, const std::set<std::string>& functions);

}  // namespace harmony::fake_cuda
