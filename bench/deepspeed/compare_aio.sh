#!/usr/bin/env bash
# Headrace's I/O engine against DeepSpeed's aio: see compare_aio.py.
#   bench/deepspeed/compare_aio.sh FOLDER [--size GiB] [--rounds N] [--json FILE]
# Needs build/release with io_bench, and the package libaio-dev. DeepSpeed's extension is compiled on
# the first run, which takes some minutes; see setup.sh.
set -euo pipefail
if [ $# -lt 1 ]; then
  sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
[ -f /usr/include/libaio.h ] || { echo "compare_aio: install libaio-dev" >&2; exit 1; }
[ -x build/release/bench/io_bench ] || { echo "compare_aio: build the target io_bench" >&2; exit 1; }
source bench/deepspeed/setup.sh
exec "$venv/bin/python" bench/deepspeed/compare_aio.py "$folder" "$@"
