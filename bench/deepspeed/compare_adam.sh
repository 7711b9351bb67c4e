#!/usr/bin/env bash
# Headrace's Adam update against DeepSpeed's CPU Adam: see compare_adam.py.
#   bench/deepspeed/compare_adam.sh BUILD_DIR [--millions N] [--rounds N] [--threads N] [--json FILE]
# BUILD_DIR is a configured build of Headrace (build/release). DeepSpeed comes from PyPI into
# build/deepspeed-venv, with the torch of .venv where that is there; its CPU Adam is compiled on the
# first run, which takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

deepspeed_version=0.19.8
if [ $# -lt 1 ] || [ ! -f "$1/build.ninja" ]; then
  echo "usage: $0 BUILD_DIR [--millions N] [--rounds N] [--threads N] [--json FILE]" >&2
  exit 2
fi
build=$1
shift
threads=2
arguments=("$@")
while [ $# -gt 0 ]; do
  if [ "$1" = --threads ]; then threads=$2; fi
  shift
done

venv=$PWD/build/deepspeed-venv
if [ ! -x "$venv/bin/python" ]; then
  python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
  "$python" -m venv "$venv"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [ -x .venv/bin/python ] && .venv/bin/python -c 'import torch' 2> /dev/null; then
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/torch.pth"
  else
    "$venv/bin/pip" install --quiet torch --index-url https://download.pytorch.org/whl/cpu
  fi
fi
if ! DS_ACCELERATOR=cpu "$venv/bin/python" -c 'import deepspeed' 2> /dev/null; then
  "$venv/bin/pip" install --quiet wheel setuptools ninja numpy packaging psutil py-cpuinfo hjson einops \
    msgpack pydantic tqdm
  DS_ACCELERATOR=cpu "$venv/bin/pip" install --quiet --no-deps --no-build-isolation \
    "deepspeed==$deepspeed_version"
fi

ninja -C "$build" headrace_update_c > /dev/null
# Two OpenMP runtimes share the cores: neither may spin while the other works.
export OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive DS_ACCELERATOR=cpu
export TORCH_EXTENSIONS_DIR=$venv/torch_extensions PATH=$venv/bin:$PATH
exec "$venv/bin/python" bench/deepspeed/compare_adam.py --library "$build/bench/libheadrace_update_c.so" \
  "${arguments[@]}"
