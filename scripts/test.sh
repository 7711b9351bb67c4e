#!/usr/bin/env bash
# Builds and runs the tests: ./scripts/test.sh [release|debug|asan|tsan] [extra ctest arguments].
# The sanitizer presets run the unit tests; release and debug the end-to-end tests too.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -gt 0 ] && shift
./scripts/build.sh "$preset"
case "$preset" in
  tsan) export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" OMP_NUM_THREADS=1
        select=(-L unit) ;;
  asan) export ASAN_OPTIONS="detect_stack_use_after_return=1 ${ASAN_OPTIONS:-}"
        select=(-L unit) ;;
  *) select=(-LE 'slow|gpu|fault|fuzz') ;;
esac
# One more than there are cores, because tests wait for the drive. Their models are small: more threads
# than this would wait for each other, busily.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
ctest --test-dir "build/$preset" --parallel "$(($(nproc) + 1))" --output-on-failure "${select[@]}" "$@"
