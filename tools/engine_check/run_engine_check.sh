#!/bin/bash
# Runs the check from its runfiles: run_engine_check.sh PYTHON [OPTION...], PYTHON with vLLM or SGLang in it.
set -euo pipefail
python="$1"
shift
cd "$0.runfiles/dws"
export PYTHONPATH="$PWD/clients/python:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec "$python" tools/engine_check/check.py "$@"
