#!/usr/bin/env bash
# Builds the CPU's optimizers and their tests for 64-bit Arm and runs them in emulation (qemu): the bits
# of NEON are those of the scalar oracle, as on x86. Needs Debian 12, and root where g++ for Arm or
# qemu are still to be installed. Two minutes; everything made lies in build/neon.
#   ./scripts/neon_check.sh
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }

libraries=(libhwy-dev:arm64 libhwy1:arm64 libfmt-dev:arm64 libfmt9:arm64 nlohmann-json3-dev)
folder=$PWD/build/neon
mkdir -p "$folder"

fail() {
  echo "neon_check: $*" >&2
  exit 1
}

./scripts/install-deps.sh --neon || fail "cannot install what it needs"

# Libraries for Arm are unpacked in the folder, by an apt with lists of its own: neither the
# packages of this system nor its architectures change.
if [ ! -f "$folder/root.is_complete" ]; then
  echo "== fetching ${libraries[*]}"
  rm -rf "$folder/apt" "$folder/root"
  mkdir -p "$folder"/apt/{lists/partial,archives/partial} "$folder/root"
  touch "$folder/apt/status"
  options=(-qq -o APT::Architecture=arm64 -o "Dir::State::lists=$folder/apt/lists"
    -o "Dir::State::status=$folder/apt/status" -o "Dir::Cache=$folder/apt" -o "APT::Sandbox::User=$(id -un)")
  { apt-get "${options[@]}" update &&
    (cd "$folder/apt/archives" && apt-get "${options[@]}" download "${libraries[@]}"); } ||
    fail "cannot fetch ${libraries[*]}; they are in Debian 12"
  for package in "$folder"/apt/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
  touch "$folder/root.is_complete"
fi

echo "== build"
cmake -S tests/neon -B "$folder/build" -G Ninja --toolchain "$PWD/cmake/Aarch64Toolchain.cmake" \
  -DCMAKE_BUILD_TYPE=Release -DHEADRACE_WERROR=ON "-DHEADRACE_AARCH64_ROOT=$folder/root" > /dev/null
cmake --build "$folder/build"

echo "== compiled for"
kernels=$(aarch64-linux-gnu-nm -C "$folder/build/neon_tests" |
  grep -oE 'N_[A-Z0-9_]+::[a-z_]+_update_here' | sort) || fail "there are no kernels in the tests"
echo "$kernels"
if grep -v '^N_NEON::' <<< "$kernels"; then fail "these kernels are not NEON's"; fi

# run PROCESSOR ARGUMENTS...: the tests on this processor of qemu's.
run() {
  QEMU_CPU=$1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} \
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$folder/build/neon_tests" "${@:2}" | tee "$folder/tests.log"
}
echo "== tests on a processor with NEON"
# *Slow goes through all 2^32 floats, without a kernel: hours in emulation.
run cortex-a72 --gtest_filter='-*Slow.*'
grep -q '^\[ TARGET .* tests of NEON run NEON$' "$folder/tests.log" || fail "NEON was not run"
echo "== dispatch on a processor with SVE"
run max --gtest_filter='NeonDispatch.*'
grep -q '^\[ TARGET .* tests of SVE run NEON$' "$folder/tests.log" || fail "qemu showed no SVE"
echo "== the optimizers have the same bits on NEON"
