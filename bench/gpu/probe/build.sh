#!/usr/bin/env bash
# Builds the probe: needs nvcc of CUDA 13 and nothing else.
#
#   bench/gpu/probe/build.sh [PROGRAM]    by default build/bin/probe; NVCC names another nvcc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
program=${1:-build/bin/probe}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
mkdir -p "$(dirname "$program")"
sources=(
  copier.cc driver.cc holders.cc kernels.cu libraries.cc main.cc memory.cc part_contexts.cc
  part_copies.cc part_death.cc part_facts.cc part_overlap.cc part_pinning.cc part_region.cc
  part_waits.cc process.cc pump.cc report.cc roles.cc shared_memory.cc worker.cc
)
# The runtime is linked statically, and opens the driver itself; libcuda is not linked at all. Devices
# without machine code here compile that of compute_80 at their first kernel.
"$nvcc" -std=c++20 -O2 -I. --threads 0 -cudart static \
  -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90 \
  -gencode arch=compute_120,code=sm_120 \
  -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror \
  -o "$program" "${sources[@]/#/bench/gpu/probe/}" -ldl -lpthread
echo "$program"
