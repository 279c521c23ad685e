#!/usr/bin/env bash
# The main job: sets up (packages, LibTorch, build; quick when done before), then trains a GPT-2-style
# byte-level language model on the licence texts that every Debian machine has, on four simulated
# devices whose memory together is less than a quarter of the job's footprint.
#
#   deploy/quickstart.sh [OUTPUT_DIR]      default: build/quickstart
set -euo pipefail
out=${1:+$(realpath -m "$1")}  # as seen from where this was called
cd "$(dirname "$0")/.."
deploy/setup.sh

out=${out:-$PWD/build/quickstart}
mkdir -p build/data
# Real text: the common licences (about 250 KB), each file once, in a fixed order.
find /usr/share/common-licenses -type f | LC_ALL=C sort | xargs cat > build/data/licenses.txt

exec build/bin/harmony run deploy/jobs/quickstart.yaml --devices 'sim*4:mem=24MiB' \
  --set output_dir="$out" --overwrite
