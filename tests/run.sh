#!/usr/bin/env bash
# Builds and runs all tests: formatting and rules of the source tree, the release build's tests (real
# processes included), clang-tidy with clang's analysis of what mutexes guard, the pure logic without optimisation and every program's types linked under
# -Wodr, the project's own code under AddressSanitizer+UBSan and ThreadSanitizer, and each fuzz target
# for a short time. Does its own set-up; quick when run again.
#
#   tests/run.sh            everything
#   tests/run.sh --quick    the release build's tests only
set -euo pipefail
cd "$(dirname "$0")/.."
quick=0
[ "${1:-}" = --quick ] && quick=1

deploy/setup.sh --no-build --with-tests
# The user's compiler cache, so that another clone or worktree compiles nothing twice; wherever it is, paths are relative.
export CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-20G}" CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

say() { echo "[tests] $(date +%H:%M:%S) $*"; }

build() {  # preset, build folder, targets...
  local preset=$1 dir=$2
  shift 2
  say "building ($preset); progress is in $dir/build.log"
  mkdir -p "$dir"
  cmake --preset "$preset" > "$dir/configure.log" 2>&1 || { cat "$dir/configure.log" >&2; exit 1; }
  ninja -C "$dir" "$@" > "$dir/build.log" 2>&1 || { tail -100 "$dir/build.log" >&2; exit 1; }
}

say "source tree"
python3 tests/tidy/tidy.py

build release build all
say "release tests"
# Whole runs wait for processes now and then: half as many tests more than cores keep these at work.
ctest --test-dir build -j "$(($(nproc) + $(nproc) / 2))" --output-on-failure --no-tests=error
grep -ho "skipped '[^']*'" build/Testing/Temporary/LastTest.log | sort | uniq -c | sed 's/^/[tests] not run here:/' || true
if [ "$quick" = 0 ]; then
  say "clang-tidy"
  python3 tests/tidy/clang_tidy.py --without-torch
  build debug build/debug pure_tests odr_check
  say "debug tests"
  # Whole searches and many schedules take minutes without optimisation; what they are made of is in the other tests.
  ctest --test-dir build/debug -j "$(nproc)" -L pure -LE long --output-on-failure --no-tests=error
  # These plan whole jobs for minutes when instrumented; bounds_test and any_chain_test run the same code.
  whole_searches='^(search_test|planner_test|published_planner_test)$'
  sanitized() {  # preset, target, labels of its tests
    build "$1" "build/$1" "$2"
    say "$1 tests"
    TSAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
      ctest --test-dir "build/$1" -j "$(nproc)" -L "$3" -E "$whole_searches" --output-on-failure --no-tests=error
  }
  sanitized asan sanitized_tests "pure|sanitize"
  sanitized tsan threaded_tests sanitize
  say "fuzz targets"
  tests/fuzz/run.sh
fi
say "all passed"
