#!/bin/bash
# Runs clang-tidy with the checks of .clang-tidy: tools/tidy/clang_tidy.sh [FILE.cc ...]
#
# Without files: all sources of the daemons, the library and the tools. Slow (gRPC's headers), so not
# part of `bazel test`. Needs the generated headers: builds //proto first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v clang-tidy >/dev/null; then
  echo "clang_tidy.sh: clang-tidy is not installed: tools/install.sh" >&2
  exit 1
fi
tools/bazel.sh build //proto/... >/dev/null 2>&1 || {
  echo "clang_tidy.sh: //proto does not build: tools/bazel.sh build //proto/..." >&2
  exit 1
}
generated="$(tools/bazel.sh info bazel-bin 2>/dev/null)"

files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(find common sender_daemon receiver_daemon tools -name '*.cc' \
    -not -path 'tools/bazel/*' | sort)
fi
echo "clang-tidy on ${#files[@]} files"
check() {
  # gcc checks warnings; -w turns clang's off.
  clang-tidy --quiet "$@" -- -std=c++20 -w -I. -isystem "$GENERATED" \
    -DSPDLOG_SHARED_LIB -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL 2>/dev/null
}
export -f check
export GENERATED="$generated"
# shellcheck disable=SC2016  # expanded by the inner shell
printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" bash -c 'check "$@"' check
echo "clang-tidy: clean"
