#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while; fails on the first finding, whose
# input is then in build/fuzz/findings/.
#
#   tests/fuzz/run.sh [SECONDS]     per target, default 10
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-10}
build=build/fuzz
mkdir -p $build/findings
cmake --preset fuzz > $build/configure.log 2>&1 || { cat $build/configure.log >&2; exit 1; }
ninja -C $build fuzz_targets > $build/build.log 2>&1 || { tail -100 $build/build.log >&2; exit 1; }

# A safetensors file of the header $1 and $2 bytes of data.
safetensors() {
  local size=${#1}
  printf '%b' "$(printf '\\x%02x\\x%02x\\0\\0\\0\\0\\0\\0' $((size % 256)) $((size / 256)))"
  printf '%s' "$1"
  head -c "$2" /dev/zero
}
corpus=$build/corpus
mkdir -p $corpus/{array_file,config,exported_model,graph,job_file,profile,safetensors,token_file}
safetensors '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}' 32 > $corpus/safetensors/two
safetensors '{"wte.weight":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}' 2 > $corpus/safetensors/scalar
printf '\x93NUMPY\x01\0\x3f\0%-62s\n%048d' "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }" 0 > $corpus/array_file/npy
printf '\0\xff\x08\x01%s' "$(head -c 600 README.md 2> /dev/null || head -c 600 "$0")" > $corpus/token_file/text
printf '\x01\xff\x03\x01\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1\0' > $corpus/token_file/u16

for target in array_file config exported_model graph job_file profile safetensors token_file; do
  # The libraries that are not ours are not instrumented: no annotations of their containers. Files are read through a
  # buffer of 1 MiB; nothing larger is taken for what an input of 8 KiB says.
  if ! ASAN_OPTIONS=detect_container_overflow=0 UBSAN_OPTIONS=print_stacktrace=1 \
    $build/fuzz/fuzz_$target -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=2 -max_len=8192 \
    -dict=tests/fuzz/$target.dict -artifact_prefix=$build/findings/$target- -print_final_stats=1 \
    $corpus/$target tests/fuzz/seeds/$target > $build/$target.log 2>&1; then
    tail -60 $build/$target.log >&2
    echo "fuzz_$target: a finding; its input is in $build/findings/" >&2
    exit 1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' $build/$target.log)
  echo "fuzz_$target: $runs inputs, no finding"
done
