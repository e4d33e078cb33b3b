#!/bin/bash
# Runs the figures of wide networks and many receivers from runfiles, its own or those it was started in: all, or
# --only=CASE. CASE: receivers; joiners, ranges and regions, which need root and network namespaces.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
cases=(receivers joiners ranges regions)
if [[ "${1:-}" == --only=* ]]; then
  only="${1#--only=}"
  if [[ " ${cases[*]} " != *" $only "* ]]; then
    echo "tools/bench.sh wide: expected --only= with one of: ${cases[*]}; found $1" >&2
    exit 2
  fi
  cases=("$only")
  shift
fi
echo id,case,ours,reference,ratio,unit
for case in "${cases[@]}"; do /usr/bin/python3 -m "tools.bench.far.$case" "$@"; done
