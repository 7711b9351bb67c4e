#!/usr/bin/env bash
# Configures and builds a preset (default: release). Shows ninja's own progress.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
./scripts/install-deps.sh
if [ ! -f "build/$preset/build.ninja" ]; then cmake --preset "$preset"; fi
cmake --build "build/$preset"
