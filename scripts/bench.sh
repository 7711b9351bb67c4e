#!/usr/bin/env bash
# Measures the data path against the machine's limits and, where its venv can be made, against
# DeepSpeed. Every figure is a ratio of runs that alternate. Writes one table to build/bench/table.md.
#   ./scripts/bench.sh FOLDER [--quick] [--deepspeed]
#     FOLDER       on the drive to measure; 20 GiB free there (3 GiB with --quick)
#     --quick      small sizes and few rounds: shows that everything runs, not what it reaches
#     --deepspeed  also the comparisons with DeepSpeed (builds it from PyPI; takes minutes)
set -euo pipefail

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; }
folder="" quick=no deepspeed=no
for argument in "$@"; do
  case "$argument" in
    --quick) quick=yes ;;
    --deepspeed) deepspeed=yes ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) folder=$argument ;;
  esac
done
[ -n "$folder" ] || { usage >&2; exit 2; }
[ -d "$folder" ] || { echo "bench: $folder is no folder" >&2; exit 2; }
if [ "$deepspeed" = yes ] && [ ! -f /usr/include/libaio.h ]; then
  echo "bench: --deepspeed needs the package libaio-dev" >&2  # now, not in half an hour
  exit 1
fi
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."

results=$PWD/build/bench
rm -rf "$results"
mkdir -p "$results"
cmake --preset release > /dev/null
cmake --build build/release --target io_bench optimizer_bench optimizer_pass_bench \
  verify_bench schedule_bench
programs=build/release/bench

if [ "$quick" = yes ]; then
  io=(--size 256MiB --sweep-size 128MiB --rounds 1 --object 1MiB)
  optimizer=(--millions 4 --rounds 3)
  pass=(--elements 16777216 --shard 1048576 --host-memory 256MiB --rounds 2)
  verify=(--size 512MiB --rounds 2)
  schedule=(--only 0.6B)
  adam=(--millions 8 --rounds 3)
  aio=(--size 0.25 --rounds 1)
else
  io=(--size 4GiB --rounds 5)
  optimizer=()
  pass=(--elements 402653184 --shard 1048576 --host-memory 512MiB --rounds 5)
  verify=()
  schedule=()
  adam=()
  aio=(--size 2 --rounds 5)
fi

echo "== I/O engine against fio"
"$programs/io_bench" "$folder/headrace-io-bench" "${io[@]}" --json "$results/io.json"
echo "== optimizers against their memory traffic"
"$programs/optimizer_bench" "${optimizer[@]}" --json "$results/optimizer.json"
echo "== optimizer pass, nvme to nvme"
"$programs/optimizer_pass_bench" "$folder" "${pass[@]}" --json "$results/pass.json"
echo "== the same without checking what was read"
"$programs/optimizer_pass_bench" "$folder" "${pass[@]}" --no-verify --json "$results/pass-no-verify.json"
echo "== checking a run's state against reading it"
"$programs/verify_bench" "$folder" "${verify[@]}" --json "$results/verify.json"
echo "== schedules against their lower bound"
"$programs/schedule_bench" "${schedule[@]}" --json "$results/schedule.json"
if [ "$deepspeed" = yes ]; then
  echo "== DeepSpeed's CPU Adam"
  bench/deepspeed/compare_adam.sh build/release "${adam[@]}" --json "$results/deepspeed-adam.json"
  echo "== DeepSpeed's aio"
  bench/deepspeed/compare_aio.sh "$folder" "${aio[@]}" --json "$results/deepspeed-aio.json"
fi

python3 bench/table.py "$results" > "$results/table.md"
echo
cat "$results/table.md"
echo "written to $results/table.md"
