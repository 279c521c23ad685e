// The only symbols that the fake driver exports, and what surrounds every call of one of its
// functions: the configured failure, and whether the call is allowed at all at this time.

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

enum class Function {
#define FAKE_CUDA_NUMBER(name) k##name,
  HARMONY_CUDA_FUNCTIONS(FAKE_CUDA_NUMBER)
#undef FAKE_CUDA_NUMBER
      kCount
};

constexpr const char* kNames[] = {
#define FAKE_CUDA_NAME(name) #name,
    HARMONY_CUDA_FUNCTIONS(FAKE_CUDA_NAME)
#undef FAKE_CUDA_NAME
};

enum class Needs { kNothing, kInit, kContext };

// As cuda.h documents it: CUDA_ERROR_INVALID_CONTEXT is among the answers, or not.
constexpr Needs NeedsOf(Function function) {
  switch (function) {
    case Function::kInit:
    case Function::kDriverGetVersion:
    case Function::kGetErrorName:
    case Function::kGetErrorString:
      return Needs::kNothing;
    case Function::kMemGetInfo:
    case Function::kMemHostRegister:
    case Function::kMemHostUnregister:
    case Function::kStreamCreate:
    case Function::kStreamDestroy:
    case Function::kStreamSynchronize:
    case Function::kEventCreate:
    case Function::kEventDestroy:
    case Function::kEventRecord:
    case Function::kEventElapsedTime:
    case Function::kMemcpyHtoDAsync:
    case Function::kMemcpyDtoHAsync:
    case Function::kMemcpyDtoDAsync:
    case Function::kMemsetD8Async:
      return Needs::kContext;
    default:
      return Needs::kInit;
  }
}

std::set<std::string> AllFunctions() { return {std::begin(kNames), std::end(kNames)}; }

bool configured = false;
uint64_t calls[static_cast<int>(Function::kCount)] = {};

void Configure(const char* text) {
  const absl::StatusOr<Config> config = ParseConfig(text == nullptr ? "" : text, AllFunctions());
  if (!config.ok()) Die(config.status().message());
  StartRaceDetector(config->shared);
  TheState().config = *config;
  TheState().streams_made = 0;
  for (uint64_t& count : calls) count = 0;
  configured = true;
}

void ConfigureFromEnvironment() {
  if (!configured) Configure(getenv("FAKE_CUDA"));
}

// Those that leave a context unusable.
bool BreaksContext(CUresult result) {
  static const auto* const breaking = new std::set<CUresult>{CUDA_ERROR_ECC_UNCORRECTABLE,
                                                             CUDA_ERROR_NVLINK_UNCORRECTABLE,
                                                             CUDA_ERROR_ILLEGAL_ADDRESS,
                                                             CUDA_ERROR_LAUNCH_TIMEOUT,
                                                             CUDA_ERROR_HARDWARE_STACK_ERROR,
                                                             CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                                             CUDA_ERROR_MISALIGNED_ADDRESS,
                                                             CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                                             CUDA_ERROR_INVALID_PC,
                                                             CUDA_ERROR_LAUNCH_FAILED,
                                                             CUDA_ERROR_ASSERT,
                                                             CUDA_ERROR_EXTERNAL_DEVICE,
                                                             CUDA_ERROR_CONTAINED,
                                                             CUDA_ERROR_UNKNOWN};
  return breaking->count(result) > 0;
}

// What its streams have not begun is never done.
void BreakCurrentContext(CUresult result) {
  State& state = TheState();
  Context* const context = FindHandle(state.contexts, CurrentContext());
  if (context == nullptr) return;
  context->broken = result;
  for (const auto& [handle, stream] : state.streams) {
    if (stream->context != CurrentContext() || stream->queue.empty()) continue;
    stream->queue.erase(stream->queue.begin() + 1, stream->queue.end());
  }
  state.progress.NotifyAll();
}

CUresult ConfiguredFailure(Function function) {
  State& state = TheState();
  const int number = static_cast<int>(function);
  const uint64_t call = ++calls[number];
  for (const Failure& failure : state.config.failures) {
    if (failure.function != kNames[number]) continue;
    if (failure.call != 0 && failure.call != call) continue;
    if (BreaksContext(failure.result)) BreakCurrentContext(failure.result);
    return failure.result;
  }
  return CUDA_SUCCESS;
}

CUresult CheckNeeds(Needs needs) {
  State& state = TheState();
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (!state.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  if (CurrentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const Context* const context = FindHandle(state.contexts, CurrentContext());
  return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context->broken;
}

bool IsForked() {
  const int pid = TheState().pid;
  if (pid == 0 || pid == getpid()) return false;
  Say("a driver does not survive fork without exec");
  return true;
}

// What callers get the address of.
template <Function number, auto function>
struct Entry;
template <Function number, typename... Args, CUresult (*function)(Args...)>
struct Entry<number, function> {
  static CUresult Call(Args... args) {
    if (IsForked()) return CUDA_ERROR_NOT_INITIALIZED;
    MutexLock lock(TheState().mutex);
    ConfigureFromEnvironment();
    const CUresult failure = ConfiguredFailure(number);
    if (failure != CUDA_SUCCESS) return failure;
    const CUresult missing = CheckNeeds(NeedsOf(number));
    if (missing != CUDA_SUCCESS) return missing;
    return function(args...);
  }
};

void* AddressOf(const std::string& name) {
  static const auto* const addresses = new std::map<std::string, void*>{
#define FAKE_CUDA_ROW(name) \
  {"cu" #name, reinterpret_cast<void*>(&Entry<Function::k##name, &name>::Call)},
      HARMONY_CUDA_FUNCTIONS(FAKE_CUDA_ROW)
#undef FAKE_CUDA_ROW
  };
  const auto it = addresses->find(name);
  return it == addresses->end() ? nullptr : it->second;
}

}  // namespace
}  // namespace harmony::fake_cuda

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_CUDA_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version,
                                              cuuint64_t flags,
                                              CUdriverProcAddressQueryResult* found) {
  using namespace harmony::fake_cuda;
  harmony::MutexLock lock(TheState().mutex);
  ConfigureFromEnvironment();
  if (symbol == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (version != CUDA_VERSION || flags != CU_GET_PROC_ADDRESS_DEFAULT) {
    return Refuse(CUDA_ERROR_INVALID_VALUE,
                  absl::StrCat("cuGetProcAddress: only the forms of version ", CUDA_VERSION));
  }
  if (version > TheState().config.driver) return CUDA_ERROR_INVALID_VALUE;  // as cuda.h says
  const std::string name = symbol;
  const bool lacking = name.size() > 2 && TheState().config.lacking.count(name.substr(2)) > 0;
  *address = lacking ? nullptr : AddressOf(name);
  if (found != nullptr) {
    *found =
        *address == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *address == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

FAKE_CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
  using namespace harmony::fake_cuda;
  return reinterpret_cast<decltype(&cuDriverGetVersion)>(AddressOf("cuDriverGetVersion"))(version);
}

// hooks.h says what this is for, as for the other functions fake_cuda_*.
FAKE_CUDA_EXPORT void fake_cuda_configure(const char* text) {
  using namespace harmony::fake_cuda;
  harmony::MutexLock lock(TheState().mutex);
  Configure(text);
}

FAKE_CUDA_EXPORT void fake_cuda_access(const void* begin, size_t bytes, int write,
                                       const char* what) {
  using namespace harmony::fake_cuda;
  harmony::MutexLock lock(TheState().mutex);
  ConfigureFromEnvironment();
  NoteCpuAccess(begin, bytes, write != 0, what);
}

FAKE_CUDA_EXPORT void fake_cuda_release(uint64_t key) {
  using namespace harmony::fake_cuda;
  harmony::MutexLock lock(TheState().mutex);
  ConfigureFromEnvironment();
  NoteReleased(key);
}

FAKE_CUDA_EXPORT void fake_cuda_acquire(uint64_t key) {
  using namespace harmony::fake_cuda;
  harmony::MutexLock lock(TheState().mutex);
  ConfigureFromEnvironment();
  NoteAcquired(key);
}
