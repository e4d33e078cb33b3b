#!/bin/bash
# Sourced by the demos of tools/ with their arguments: installs what is missing and builds the targets in `targets`. Then
# `options` has the arguments, with an absolute path behind --python, and `binaries` is the folder of what was built.
#
#   targets=(//tools/demo)
#   source "$(dirname "${BASH_SOURCE[0]}")/shell/demo.sh"
set -euo pipefail

# Prints the path of a Python, which need not be there; a name without a folder is looked up in PATH.
absolute_python() {
  realpath -sm "$(command -v "$1" || echo "$1")"
}

options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) options+=("--python=$(absolute_python "${1#*=}")"); shift ;;
    --python) options+=("--python=$(absolute_python "${2:?--python: expected the path of a Python}")"); shift 2 ;;
    *) options+=("$1"); shift ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/install.sh
# LD_LIBRARY_PATH and PYTHONPATH are for the named Python: Bazel runs without them.
bazel=(env -u LD_LIBRARY_PATH -u PYTHONPATH tools/bazel.sh)
# shellcheck disable=SC2154  # the demo sets them
"${bazel[@]}" build --ui_event_filters=-info,-stdout,-stderr --noshow_progress "${targets[@]}"
# shellcheck disable=SC2034  # used by the demo
binaries="$("${bazel[@]}" info --noshow_progress bazel-bin 2>/dev/null)"
