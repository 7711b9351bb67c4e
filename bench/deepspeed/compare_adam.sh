#!/usr/bin/env bash
# Headrace's Adam update against DeepSpeed's CPU Adam: see compare_adam.py.
#   bench/deepspeed/compare_adam.sh BUILD_DIR [--millions N] [--rounds N] [--threads N] [--json FILE]
# BUILD_DIR is a configured build of Headrace (build/release). DeepSpeed's CPU Adam is compiled on the
# first run, which takes some minutes; see setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

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

source bench/deepspeed/setup.sh

cmake --build "$build" --target headrace_update_c > /dev/null  # with its own ninja, not the venv's
# Two OpenMP runtimes share the cores: neither may spin while the other works.
export OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive
exec "$venv/bin/python" bench/deepspeed/compare_adam.py --update "$build/bench/libheadrace_update_c.so" \
  "${arguments[@]}"
