#!/usr/bin/env bash
# Builds the fuzz targets with clang's libFuzzer and runs each for a while, from its corpus:
#   ./scripts/fuzz.sh [SECONDS=180] [TARGET...]
# What is found is written to build/fuzz/findings/<target>/; mend it and put the input in
# tests/fuzz/corpus/<target>/. New inputs that reach new code are kept in build/fuzz/corpus/.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-180}
[ $# -gt 0 ] && shift
if [ $# -gt 0 ]; then targets=("$@"); else
  mapfile -t targets < <(find tests/fuzz/corpus -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
fi

if ! command -v clang++ >/dev/null ||
    ! compgen -G "$(clang -print-runtime-dir)/libclang_rt.fuzzer*.a" >/dev/null; then
  echo "SKIPPED: no clang with libFuzzer; apt-get install clang libclang-rt-14-dev"
  exit 0
fi

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz

failed=()
for target in "${targets[@]}"; do
  echo "== $target for $seconds s"
  mkdir -p "build/fuzz/corpus/$target" "build/fuzz/findings/$target"
  # A few MiB are all that any reader needs for inputs of this size.
  if ! HEADRACE_FUZZ_TARGET=$target ./build/fuzz/tests/fuzz/fuzzer \
      -max_total_time="$seconds" -timeout=20 -max_len=16384 -malloc_limit_mb=256 \
      -rss_limit_mb=1024 -print_final_stats=1 -print_funcs=0 -verbosity=0 \
      -artifact_prefix="build/fuzz/findings/$target/" \
      "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"; then
    failed+=("$target")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "findings in: ${failed[*]}; see build/fuzz/findings" >&2
  exit 1
fi
echo "no findings in: ${targets[*]}"
