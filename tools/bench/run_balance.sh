#!/bin/bash
# Runs the benchmark of balanced minibatches from runfiles, its own or those it was started in.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 -m tools.bench.minibatches.balance_bench "$@"
