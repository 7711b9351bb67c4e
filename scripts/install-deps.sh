#!/usr/bin/env bash
# Installs the Debian packages that Headrace builds and tests with. Idempotent: what is there is
# left alone. Needs root (or sudo) only when something is missing.
#   ./scripts/install-deps.sh             all but the browser
#   ./scripts/install-deps.sh --browser   with Chromium (350 MiB), for the tests of the report page
#   ./scripts/install-deps.sh --neon      with g++ for 64-bit Arm and qemu, for scripts/neon_check.sh
set -euo pipefail

packages=(
  # build
  build-essential cmake ninja-build ccache mold pkg-config git
  # libraries
  liburing-dev libhwloc-dev librocksdb-dev zlib1g-dev libprotobuf-dev protobuf-compiler libdnnl-dev libhwy-dev
  libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev
  # tests, style and scripts
  libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy python3 python3-venv fio
)

case "${1:-}" in
  --browser) packages+=(chromium fonts-dejavu-core) ;;
  --neon) packages+=(g++-12-aarch64-linux-gnu qemu-user googletest) ;;
  "") ;;
  *) echo "usage: $0 [--browser | --neon]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps: all ${#packages[@]} packages are installed"
  exit 0
fi

echo "install-deps: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "install-deps: done"
