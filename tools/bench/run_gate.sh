#!/bin/bash
# Runs the gate from runfiles, its own or those it was started in.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 tools/bench/instructions/gate.py "$@"
