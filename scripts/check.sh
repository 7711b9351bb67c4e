#!/usr/bin/env bash
# What CI runs: format, repository rules, build with warnings as errors, tidy, tests.
#   ./scripts/check.sh          clang-tidy on what changed since origin/main (else the last commit)
#   ./scripts/check.sh --all    clang-tidy on every source
set -euo pipefail
cd "$(dirname "$0")/.."

all=no
case "${1:-}" in
  --all) all=yes ;;
  "") ;;
  *) echo "usage: $0 [--all]" >&2; exit 2 ;;
esac

# Prints the first of the given commands that exists.
find_tool() {
  for name in "$@"; do
    if command -v "$name"; then return; fi
  done
  echo "none of $* is installed; run: apt-get install clang-format clang-tidy" >&2
  return 1
}
clang_format=$(find_tool clang-format-14 clang-format)
run_clang_tidy=$(find_tool run-clang-tidy-14 run-clang-tidy)

# Tracked and new files that still exist, one a line.
sources() {
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    if [ -f "$file" ]; then echo "$file"; fi
  done
}

echo "== format"
sources '*.h' '*.cc' '*.inl' '*.cu' '*.cuh' | xargs "$clang_format" --dry-run -Werror

echo "== repository rules"
(cd tests/rules && PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -q rules_test)

echo "== build, warnings are errors"
./scripts/install-deps.sh
cmake --preset release -DHEADRACE_WERROR=ON > /dev/null
cmake --build build/release

echo "== tidy"
changed() {
  local base=HEAD~1
  if git rev-parse -q --verify origin/main > /dev/null; then
    base=$(git merge-base HEAD origin/main)
  elif ! git rev-parse -q --verify HEAD~1 > /dev/null; then
    base=$(git hash-object -t tree /dev/null)  # a single commit: everything is new
  fi
  git diff --name-only --diff-filter=d "$base" -- '*.h' '*.cc'
  git ls-files --others --exclude-standard -- '*.h' '*.cc'
}
# The sources to look at: those that changed, and those that include a header that changed.
to_tidy() {
  if [ "$all" = yes ]; then
    sources '*.cc'
    return
  fi
  changed | while read -r file; do
    case "$file" in
      *.cc) echo "$file" ;;
      *.h) git grep -l --untracked -F "#include \"$file\"" -- '*.cc' || true ;;
    esac
  done
}
# Tests are left out: GoogleTest's macros do not follow the house's checks.
mapfile -t tidy < <(to_tidy | grep -v '^tests/' | sort -u | sed "s|^|^$PWD/|; s|$|\$|")
if [ ${#tidy[@]} -gt 0 ]; then
  echo "${#tidy[@]} files"
  # GCC's own warning options are in the compile commands, and its precompiled headers, which clang
  # cannot read.
  mkdir -p build/release/tidy
  sed 's/-include [^ ]*cmake_pch\.hxx//g' build/release/compile_commands.json \
    > build/release/tidy/compile_commands.json
  "$run_clang_tidy" -quiet -j2 -p build/release/tidy -extra-arg=-Wno-unknown-warning-option "${tidy[@]}"
fi

echo "== tests"
./scripts/test.sh release
echo "== all checks passed"
