#!/bin/bash
# Runs the benchmarks of full weights and of layouts from runfiles, its own or those it was started in.
# --size-mib and --rounds are those of full weights; --link-size-mib and --link-rate those between hosts. --peers=PYTHON
# ($DWS_BENCH_PEERS) names a Python with Mooncake, which is measured beside ours.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
echo id,case,ours,reference,ratio,unit
/usr/bin/python3 tools/bench/full_weights/full_bench.py "$@"

jobs="$(mktemp -d)"
trap 'rm -rf "$jobs"' EXIT
/usr/bin/python3 tools/bench/layouts/write_jobs.py "$jobs"
tools/bench/layouts/layout_bench "$jobs"/*.job | tail -n +2  # the head is there
