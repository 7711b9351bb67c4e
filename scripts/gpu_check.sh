#!/usr/bin/env bash
# Runs on a machine with an NVIDIA GPU what no other machine can: the tests with the label gpu, the
# same under compute-sanitizer, and the benchmarks. One report: build/gpu_check/report.md. Meant for
# 8 minutes on 16 cores; a part that is out of time is skipped and says so.
#   ./scripts/gpu_check.sh            everything
#   ./scripts/gpu_check.sh --dry-run  the same steps without a GPU: tests are skipped, the benchmark
#                                     runs on the CPU with small sizes
#   ./scripts/gpu_check.sh --built FOLDER  what is built there already, such as build/release
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=no build=yes built=build/cuda
while [ $# -gt 0 ]; do
  case "$1 ${2:-}" in
    "--dry-run "*) dry_run=yes ;;
    "--built "?*) build=no built=$2; shift ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done

seconds_allowed=480
folder=$PWD/build/gpu_check
report=$folder/report.md
rm -rf "$folder"
mkdir -p "$folder"
failed=()

seconds_left() { echo $((seconds_allowed - SECONDS)); }

# step TITLE LIMIT COMMAND...: runs the command for at most LIMIT seconds, or what is left of the
# time; its output goes to the report.
step() {
  local title=$1 limit=$2 left code=0 began=$SECONDS
  shift 2
  left=$(seconds_left)
  echo "== $title"
  if [ "$left" -lt 10 ]; then
    printf '\n## %s\n\nSkipped: out of time.\n' "$title" >> "$report"
    failed+=("$title (out of time)")
    return
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  timeout --kill-after=10 "$limit" "$@" > "$folder/step.log" 2>&1 || code=$?
  {
    printf '\n## %s\n\n' "$title"
    printf '    %s\n\nExit status %d, %d s.\n\n' "$*" "$code" $((SECONDS - began))
    if [ "$code" -eq 124 ]; then echo "Stopped after $limit s."; fi
    # A table stays one, everything else is text as it came.
    if grep -q '^|---' "$folder/step.log"; then cat "$folder/step.log"; else
      echo '```'; tail -n 60 "$folder/step.log"; echo '```'
    fi
  } >> "$report"
  if [ "$code" -ne 0 ]; then failed+=("$title"); fi
}

describe_machine() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current \
    --format=csv || echo "no nvidia-smi"
  "${NVCC:-nvcc}" --version | tail -n 2 || echo "no nvcc"
  nproc
  git log -1 --format='%H %s' || true
}

run_build() {
  set -euo pipefail  # bash -c does not inherit them
  local architectures
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null |
    head -n 1 | tr -d '. ' || true)
  # For the GPU that is here: the others would take time.
  cmake --preset cuda "-DHEADRACE_CUDA_ARCHITECTURES=${architectures:-90}" &&
    cmake --build "$built" --target headrace headrace_cuda device_tests engine_tests e2e_tests gpu_bench
}

sanitize() {
  set -euo pipefail  # bash -c does not inherit them
  local tool=$1
  export HEADRACE_TEST_GPU=1 HEADRACE_CUDA_LIBRARY=$PWD/$built/bin/libheadrace_cuda.so
  local check=(compute-sanitizer --tool "$tool" --error-exitcode 1 --launch-timeout 60)
  "${check[@]}" "$built/tests/device/device_tests" \
    --gtest_filter='*KernelsTest*/gpu:*Fp8Test*/gpu:*RmsNormTest*/gpu:*CrossEntropyTest*/gpu:*AttentionTest.SmallShapes/gpu:*AttentionTest.SeveralTiles/gpu'
  "${check[@]}" "$built/tests/engine/engine_tests" \
    --gtest_filter='*DeviceUpdateTest.Statistics*/gpu:*DeviceUpdateTest.Finds*/gpu:*DeviceUpdateTest.Rewriting*/gpu'
}

# A model in 1/8 of the device memory that it would take beside one with all of it.
streamed_training() {
  set -euo pipefail  # bash -c does not inherit them
  local train=("$built/bin/headrace" train --model "$folder/model" --data README.md
    --config "$folder/config.json" --micro-batch 4 --host-memory "$6")
  local full=$1 eighth=$2 seq=$3 steps=$4 preset=$5
  # State on disk is not what is measured.
  sed '0,/{/s//{ "headrace": { "keep_run": false },/' configs/zero3_cpu.json > "$folder/config.json"
  "$built/bin/headrace" init-model --preset "$preset" --dtype bf16 --output "$folder/model"
  "${train[@]}" --seq-len "$seq" --steps "$steps" --device-memory "$full" --output "$folder/full"
  "${train[@]}" --seq-len "$seq" --steps "$steps" --device-memory "$eighth" --output "$folder/eighth"
  # The median of the steps after the first three, which are learned from.
  python3 - "$folder/full/metrics.jsonl" "$folder/eighth/metrics.jsonl" << 'PYTHON'
import json, statistics, sys
def rate(path):
    lines = [json.loads(line) for line in open(path)]
    steps = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return statistics.median(steps[3:])
full, eighth = map(rate, sys.argv[1:])
print(f"{full:.0f} tokens/s with all memory, {eighth:.0f} with an eighth: {100 * eighth / full:.0f} %")
PYTHON
}

export -f run_build sanitize streamed_training describe_machine
export folder built

printf '# GPU check, %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)" > "$report"
step "Machine" 30 bash -c describe_machine
if [ "$build" = yes ]; then step "Build" 300 bash -c run_build; fi
step "Tests with the label gpu" 120 ctest --test-dir "$built" -L gpu --output-on-failure --verbose
if grep -q 'SKIPPED:' "$folder/step.log" && [ "$dry_run" = no ]; then
  failed+=("there is no usable GPU")
fi
# It says whether GPUDirect Storage works here, and how fast.
step "Doctor" 60 "$built/bin/headrace" doctor --path build
if [ "$dry_run" = yes ]; then
  step "Benchmark (CPU, small)" 60 "$built/bench/gpu_bench" --cpu --quick
else
  export HEADRACE_CUDA_LIBRARY=$PWD/$built/bin/libheadrace_cuda.so
  step "Benchmark" 90 "$built/bench/gpu_bench"
  if command -v compute-sanitizer > /dev/null; then
    step "compute-sanitizer memcheck" 90 bash -c 'sanitize memcheck'
    step "compute-sanitizer racecheck" 90 bash -c 'sanitize racecheck'
  else
    printf '\n## compute-sanitizer\n\nSkipped: not installed.\n' >> "$report"
  fi
fi
if [ "$dry_run" = yes ]; then
  step "Streamed training" 120 bash -c 'streamed_training 64MiB 32MiB 32 5 tiny 512MiB'
else
  step "Streamed training" 150 bash -c 'streamed_training 24GiB 3GiB 1024 8 large 24GiB'
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf '\n## Result\n\nFailed: %s\n' "$(IFS=';'; echo "${failed[*]}")" >> "$report"
  echo "failed: ${failed[*]}; see $report" >&2
  exit 1
fi
printf '\n## Result\n\nEverything passed.\n' >> "$report"
echo "everything passed: $report"
