#!/bin/bash
# Installs what is missing, builds the daemons and runs the demo: tools/demo.sh [OPTION...]
#
#   --steps N                  policy-gradient steps (80)
#   --warm-up N                supervised steps before (80)
#   --engines N                rollout engines (2)
#   --ranks N                  trainer ranks, each owns rows (1)
#   --trainer plain|fsdp2      plain: one process has all ranks; fsdp2: each rank is a process of FSDP2 (plain)
#   --python PYTHON            for fsdp2: of an environment with torch 2.6 or newer, numpy, grpcio and protobuf; by
#                              default $DWS_TRAINERS_PYTHON
#   --engine-tp N              tensor-parallel ranks of each engine, a process each, with slices of the weights (1)
#   --seed N                   of everything random (1)
#   --keep                     leave the daemons running
#   --flip-bit                 flip one bit of one engine's weights without DWS: the demo must fail
#
# A trainer and rollout engines learn together; their weights go through the daemons only. Ends with
# a verdict; the exit status is 0 only when every claim holds.
# LD_LIBRARY_PATH is for the Python that --python names.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

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

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/install.sh
# LD_LIBRARY_PATH and PYTHONPATH are for the named Python: Bazel runs without them.
bazel=(env -u LD_LIBRARY_PATH -u PYTHONPATH tools/bazel.sh)
"${bazel[@]}" build --ui_event_filters=-info,-stdout,-stderr --noshow_progress //tools/demo //tools/dwsctl
binaries="$("${bazel[@]}" info --noshow_progress bazel-bin 2>/dev/null)"
export DWSCTL="$binaries/tools/dwsctl/dwsctl"  # named by --keep
exec "$binaries/tools/demo/demo" ${options[@]+"${options[@]}"}
