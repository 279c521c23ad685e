#!/usr/bin/env bash
# Installs what Harmony needs on Debian 12 and builds it. Quick when run again: each step looks first
# whether its work is done.
#
#   deploy/setup.sh                 packages, LibTorch into .deps/libtorch, release build into build/
#   deploy/setup.sh --no-build      packages and LibTorch only
#   deploy/setup.sh --with-tests    also what tests/run.sh needs (clang tools, Python test environments)
#   deploy/setup.sh --with-parity   also PyTorch and transformers for Python, to compare results with
set -euo pipefail
cd "$(dirname "$0")/.."

build=1 tests=0 parity=0
for arg in "$@"; do
  case "$arg" in
    --no-build) build=0 ;;
    --with-tests) tests=1 ;;
    --with-parity) parity=1 ;;
    *) echo "setup.sh: unknown option '$arg' (see the head of the file)" >&2; exit 2 ;;
  esac
done

packages=(build-essential cmake ninja-build mold ccache pkg-config git python3 python3-venv
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libgtest-dev libgmock-dev libsqlite3-dev libsqlitecpp-dev libspdlog-dev libcli11-dev libyaml-cpp-dev
  nlohmann-json3-dev libxxhash-dev libssl-dev)
test_packages=(openssl tmux clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev)

say() { echo "[setup] $*"; }

install_packages() {
  local missing=() sudo=()
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing Debian packages: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      { echo "setup.sh: not root and no sudo; install by hand: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# A virtual environment from a requirements file; made anew when the file changes.
make_venv() {
  local dir=$1 requirements=$2
  if [ -f "$dir/.complete" ] && cmp -s "$requirements" "$dir/.complete"; then return 0; fi
  say "making $dir from $requirements"
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  cp "$requirements" "$dir/.complete"
}

# LibTorch is the PyTorch wheel, unpacked, plus the two small libraries that libtorch_cpu.so is linked
# against even where there is no GPU. Programs use its libraries and headers, tests of exports the rest.
install_libtorch() {
  local wheels=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
  local target=.deps/libtorch work
  local complete="${wheels[*]}, whole"
  if [ -f "$target/.complete" ] && [ "$(cat "$target/.complete")" = "$complete" ]; then return 0; fi
  say "fetching LibTorch (${wheels[*]})"
  mkdir -p .deps
  work=$(mktemp -d .deps/libtorch.XXXXXX)
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --dest "$work/wheels" "${wheels[@]}"
  mkdir "$work/out"
  for wheel in "$work"/wheels/*.whl; do
    "$work/venv/bin/python" -m zipfile -e "$wheel" "$work/out"
  done
  echo "$complete" > "$work/out/.complete"
  rm -rf "$target"
  mv "$work/out" "$target"
  rm -rf "$work"
}

# PyTorch for the tests of exports: that of .deps/libtorch, with what it needs of Python.
make_export_venv() {
  local dir=.deps/export-venv
  if ! ls /usr/local/cuda*/lib64/libcublas.so.13 >/dev/null 2>&1 &&
    ! ldconfig -p | grep -q libcublas.so.13; then
    say "no CUDA 13 toolkit, so Python cannot load PyTorch: tests of exports are left out"
    return 0
  fi
  make_venv "$dir" tests/export/requirements.txt
  local site part
  site=$(echo "$dir"/lib/python3*/site-packages)
  # Hard links, not a search path or symbolic links: PyTorch looks for the CUDA libraries beside itself.
  if [ ! -e "$site/torch" ]; then
    for part in .deps/libtorch/{torch,torchgen,functorch,torch-*.dist-info}; do
      cp -al "$part" "$site/"
    done
  fi
  echo "$PWD/client/export" > "$site/harmony.pth"
}

install_packages "${packages[@]}"
[ "$tests" = 0 ] || install_packages "${test_packages[@]}"
install_libtorch
[ "$tests" = 0 ] || make_venv .deps/test-venv tests/requirements.txt
[ "$tests" = 0 ] || make_export_venv
[ "$parity" = 0 ] || make_venv .deps/parity-venv tests/parity/requirements.txt

if [ "$build" = 1 ]; then
  mkdir -p build
  cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
  say "building (release); progress is in build/build.log, the first time takes a while"
  ninja -C build harmony harmony-compare harmony-coordinator harmony-cuda harmony-worker harmony-swapper harmony_documents > build/build.log 2>&1 ||
    { tail -60 build/build.log >&2; exit 1; }
fi
say "ready"
