#!/bin/bash
# Runs the benchmark of PULSELoCo from runfiles, its own or those it was started in.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
export OPENBLAS_NUM_THREADS=1  # the same sums, whatever the machine has, and no threads that wait for each other
exec /usr/bin/python3 -m tools.bench.local_rounds.pulse_bench "$@"
