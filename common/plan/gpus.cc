#include "common/plan/gpus.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"

namespace harmony::plan {
namespace {

// Of what is free, what is left to others where nobody says how much to take: a screen, say, may
// want a little more a moment later.
Bytes LeftToOthers(Bytes free) { return std::max(MiB(256), Bytes(free.count() / 50)); }

// What LibTorch's and cuBLAS's code take of a GPU in a worker, beside its context: about 0.5 GB
// with the kernels for one architecture loaded as they are used.
constexpr Bytes kComputeLibraries(int64_t{512} << 20);

std::vector<absl::string_view> Items(absl::string_view devices) {
  return absl::StrSplit(devices, absl::ByAnyChar("; \t\n"), absl::SkipEmpty());
}

bool MeansAll(absl::string_view item) { return item == "cuda" || absl::StartsWith(item, "cuda,"); }

absl::StatusOr<const Gpu*> Find(const std::vector<Gpu>& gpus, int ordinal) {
  for (const Gpu& gpu : gpus) {
    if (gpu.ordinal != ordinal) continue;
    if (gpu.problem.empty()) return &gpu;
    return absl::InvalidArgumentError(
        absl::StrCat("devices: cuda:", ordinal, " cannot be used: ", gpu.problem));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("devices: there is no cuda:", ordinal, "; this machine has ",
                   absl::StrJoin(gpus, ", ", [](std::string* out, const Gpu& gpu) {
                     absl::StrAppend(out, "cuda:", gpu.ordinal, " (", gpu.name, ")");
                   })));
}

// Contexts of this machine's processes on the GPU: a worker's for each device that is it, the
// swapper's, and those of other GPUs' workers that copy to it, if they do not reach it otherwise.
int64_t ContextsOn(int ordinal, const std::vector<DeviceSpec>& specs) {
  int64_t contexts = 0;
  bool swapper = false;
  for (const DeviceSpec& spec : specs) {
    contexts += int{spec.cuda_ordinal == ordinal || spec.worker_copies};
    swapper = swapper || !spec.worker_copies;
  }
  return contexts + int{swapper};
}

// The memory of the devices that are one GPU.
absl::Status ShareMemory(const Gpu& gpu, int64_t contexts,
                         const std::vector<DeviceSpec*>& devices) {
  const Bytes processes = gpu.context * contexts + kComputeLibraries * std::ssize(devices);
  Bytes given;
  int64_t open = 0;
  for (const DeviceSpec* device : devices) {
    given += device->memory;
    open += int{device->memory == Bytes()};
  }
  const Bytes left = gpu.free - processes - given - (open > 0 ? LeftToOthers(gpu.free) : Bytes());
  if (left < kGpuPage * open) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices: cuda:", gpu.ordinal, " (", gpu.name, ") has ", FormatBytes(gpu.free),
                     " free of ", FormatBytes(gpu.memory), "; ",
                     given > Bytes() ? FormatBytes(given) + " are asked for, and " : "",
                     "the processes that use it take about ", FormatBytes(processes),
                     ": give less mem=, or end what uses the GPU (nvidia-smi)"));
  }
  for (DeviceSpec* device : devices) {
    if (device->memory > Bytes()) continue;
    const int64_t share = left.count() / open;
    device->memory = Bytes(share - share % kGpuPage.count());
  }
  return absl::OkStatus();
}

// Of all devices that are GPUs.
absl::Status ShareAll(const std::vector<Gpu>& gpus, std::vector<DeviceSpec>& specs) {
  std::map<int, std::vector<DeviceSpec*>> by_gpu;
  for (DeviceSpec& spec : specs) {
    if (spec.kind == DeviceKind::kCuda) by_gpu[spec.cuda_ordinal].push_back(&spec);
  }
  for (auto& [ordinal, same] : by_gpu) {
    HARMONY_ASSIGN_OR_RETURN(const Gpu* gpu, Find(gpus, ordinal));
    HARMONY_RETURN_IF_ERROR(ShareMemory(*gpu, ContextsOn(ordinal, specs), same));
  }
  return absl::OkStatus();
}

}  // namespace

std::string GpusToJson(const std::vector<Gpu>& gpus) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Gpu& gpu : gpus) {
    json.push_back({{"ordinal", gpu.ordinal},
                    {"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"bus", gpu.bus},
                    {"multiprocessors", gpu.multiprocessors},
                    {"capability", gpu.capability},
                    {"memory", gpu.memory.count()},
                    {"free", gpu.free.count()},
                    {"context", gpu.context.count()},
                    {"problem", gpu.problem}});
  }
  return json.dump();
}

absl::StatusOr<std::vector<Gpu>> GpusFromJson(absl::string_view json) {
  std::vector<Gpu> gpus;
  HARMONY_RETURN_IF_ERROR(document::ReadJson(json, "GPUs", [&](const document::JsonField& root) {
    for (const document::JsonField& item : root.Items()) {
      Gpu& gpu = gpus.emplace_back();
      gpu.ordinal = item.Get("ordinal").Int(0);
      gpu.name = item.Get("name").Text();
      gpu.uuid = item.Get("uuid").Text();
      gpu.bus = item.Get("bus").Text();
      gpu.multiprocessors = item.Get("multiprocessors").Int(0);
      gpu.capability = item.Get("capability").Int(0);
      gpu.memory = Bytes(item.Get("memory").Integer(0));
      gpu.free = Bytes(item.Get("free").Integer(0));
      gpu.context = Bytes(item.Get("context").Integer(0));
      gpu.problem = item.Get("problem").Text();
    }
  }));
  return gpus;
}

bool NeedsGpus(absl::string_view devices) {
  for (absl::string_view item : Items(devices)) {
    if (absl::StartsWith(item, "cuda") && !absl::StrContains(item, "mem=")) return true;
    if (MeansAll(item)) return true;
  }
  return false;
}

absl::StatusOr<std::string> NameGpus(absl::string_view devices, const std::vector<Gpu>& gpus) {
  const bool any = absl::c_any_of(gpus, [](const Gpu& gpu) { return gpu.problem.empty(); });
  std::vector<std::string> items;
  for (absl::string_view item : Items(devices)) {
    if (!MeansAll(item)) {
      items.emplace_back(item);
      continue;
    }
    for (const Gpu& gpu : gpus) {
      // One that somebody else fills, say, is no reason not to use the others.
      if (any && !gpu.problem.empty()) continue;
      items.push_back(absl::StrCat("cuda:", gpu.ordinal, item.substr(sizeof("cuda") - 1)));
    }
  }
  HARMONY_ASSIGN_OR_RETURN(std::vector<DeviceSpec> specs, ParseDevices(absl::StrJoin(items, ";")));
  HARMONY_RETURN_IF_ERROR(ShareAll(gpus, specs));
  return ToString(specs);
}

absl::Status CheckGpus(std::vector<DeviceSpec> devices, const std::vector<Gpu>& gpus) {
  return ShareAll(gpus, devices);
}

}  // namespace harmony::plan
