#!/bin/bash
# Installs what is missing, builds the daemons and runs the demo: tools/demo.sh [--help | OPTION...]
#
# A trainer and rollout engines learn together; their weights go through the daemons only. Ends with
# a verdict; the exit status is 0 only when every claim holds. --help lists the options.
# LD_LIBRARY_PATH is for the Python that --python names.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

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
build_beside //tools/demo //tools/dwsctl
export DWSCTL="$binaries/tools/dwsctl/dwsctl"  # named by --keep
exec "$binaries/tools/demo/demo" ${options[@]+"${options[@]}"}
