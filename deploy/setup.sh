#!/usr/bin/env bash
# Installs what Harmony needs on Debian 12 and builds it. Quick when run again: each step looks first
# whether its work is done.
#
#   deploy/setup.sh                 packages, LibTorch into .deps/libtorch, release build into build/
#   deploy/setup.sh --no-build      packages and LibTorch only
#   deploy/setup.sh --with-tests    also what tests/run.sh needs (clang tools, Python test environments)
#   deploy/setup.sh --with-parity   also PyTorch and transformers for Python, to compare results with
#
# Where there is a driver of NVIDIA's GPUs it also fetches what computing on them takes, some 3 GB: the
# libraries of CUDA 13 that LibTorch needs, and nvcc. --with-cuda does so anywhere, --without-cuda nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."

build=1 tests=0 parity=0 cuda=auto
for arg in "$@"; do
  case "$arg" in
    --no-build) build=0 ;;
    --with-tests) tests=1 ;;
    --with-parity) parity=1 ;;
    --with-cuda) cuda=1 ;;
    --without-cuda) cuda=0 ;;
    *) echo "setup.sh: unknown option '$arg' (see the head of the file)" >&2; exit 2 ;;
  esac
done

packages=(build-essential cmake ninja-build mold ccache pkg-config git python3 python3-venv
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libgtest-dev libgmock-dev libsqlite3-dev libsqlitecpp-dev libspdlog-dev libcli11-dev libyaml-cpp-dev
  nlohmann-json3-dev libxxhash-dev libssl-dev libmimalloc-dev)
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
  rm -rf .deps/libtorch.??????  # of a time that was ended halfway
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

# A pipe into grep -q would fail now and then: it ends before ldconfig does.
loader_finds() {
  local known
  known=$(PATH=$PATH:/sbin ldconfig -p 2>/dev/null || true)
  [[ $known == *"$1"* ]]
}

has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || loader_finds libcuda.so.1; }

# Beside LibTorch, where libtorch_cuda.so and the build look for them; the versions are those of its wheel.
install_cuda_libraries() {
  local toolkit='cuda-toolkit[cccl,crt,cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvcc,nvjitlink,nvrtc,nvvm]==13.0.2'
  local wheels=("$toolkit" nvidia-cudnn-cu13==9.19.0.56 nvidia-cusparselt-cu13==0.8.0
    nvidia-nccl-cu13==2.28.9 nvidia-nvshmem-cu13==3.4.5)
  local target=.deps/libtorch work
  if [ -f "$target/.cuda" ] && [ "$(cat "$target/.cuda")" = "${wheels[*]}" ]; then return 0; fi
  say "fetching the libraries of CUDA 13 (some 3 GB; --without-cuda leaves them out)"
  rm -rf .deps/cuda.??????  # of a time that was ended halfway
  work=$(mktemp -d .deps/cuda.XXXXXX)
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" download --quiet --disable-pip-version-check --only-binary=:all: \
    --python-version 3.11 --dest "$work/wheels" "${wheels[@]}"
  mkdir "$work/out"
  for wheel in "$work"/wheels/*.whl; do
    "$work/venv/bin/python" -m zipfile -e "$wheel" "$work/out"
    rm "$wheel"
  done
  chmod +x "$work"/out/nvidia/cu13/bin/* "$work"/out/nvidia/cu13/nvvm/bin/*
  cp -alf "$work/out/nvidia" "$target/"
  rm -rf "$work"
  echo "${wheels[*]}" > "$target/.cuda"
}

# PyTorch for the tests of exports: that of .deps/libtorch, with what it needs of Python.
make_export_venv() {
  local dir=.deps/export-venv
  if ! ls /usr/local/cuda*/lib64/libcublas.so.13 >/dev/null 2>&1 && ! loader_finds libcublas.so.13 &&
    [ ! -f .deps/libtorch/.cuda ]; then
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
  # What was only unpacked has no byte code, and tests write none: each would compile PyTorch whenever it starts.
  if [ ! -e "$site/.torch_compiled" ]; then
    # Its exit code is that of the worst file; some of PyTorch's are templates.
    env -u PYTHONDONTWRITEBYTECODE "$dir/bin/python" -m compileall -qq -j 0 "$site"/{torch,torchgen,functorch} || true
    touch "$site/.torch_compiled"
  fi
  if [ -f .deps/libtorch/.cuda ] && ! cmp -s .deps/libtorch/.cuda "$site/nvidia/.cuda"; then
    cp -alf .deps/libtorch/nvidia "$site/"
    cp .deps/libtorch/.cuda "$site/nvidia/.cuda"
  fi
  echo "$PWD/client/export" > "$site/harmony.pth"
}

install_packages "${packages[@]}"
[ "$tests" = 0 ] || install_packages "${test_packages[@]}"
install_libtorch
if [ "$cuda" = auto ]; then cuda=0; ! has_nvidia_driver || cuda=1; fi
[ "$cuda" = 0 ] || install_cuda_libraries
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
