#!/bin/bash
# Runs the demo from its runfiles: run_demo_vllm.sh PYTHON [OPTION...], PYTHON with vLLM in it.
# The client is that of the wheel, with its entry points.
set -euo pipefail
python="$1"
shift
cd "$0.runfiles/dws"
installed="$(mktemp -d)"
trap 'rm -rf "$installed"' EXIT
/usr/bin/python3 -m zipfile -e clients/python/dws.whl "$installed"
export PYTHONPATH="$installed:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
"$python" tools/demo_vllm/demo.py "$@"
