#include "worker/optimizer/kernels.h"

namespace harmony::worker {

const char* ToString(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

#if defined(__x86_64__)

bool IsaSupported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") > 0;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") > 0 && __builtin_cpu_supports("avx512dq") > 0;
  }
  return false;
}

const Kernels& KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    default:
      return kScalarKernels;
  }
}

#else

bool IsaSupported(Isa isa) { return isa == Isa::kScalar; }
const Kernels& KernelsFor(Isa) { return kScalarKernels; }

#endif

Isa BestIsa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (IsaSupported(isa)) return isa;
  }
  return Isa::kScalar;
}

}  // namespace harmony::worker
