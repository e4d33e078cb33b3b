#!/bin/bash
# Runs the check from its runfiles: run_trainers_check.sh PYTHON [OPTION...], PYTHON with the trainers' packages.
# The client is that of the wheel.
set -euo pipefail
python="$1"
shift
cd "$0.runfiles/dws"
installed="$(mktemp -d)"
trap 'rm -rf "$installed"' EXIT
/usr/bin/python3 -m zipfile -e clients/python/dws.whl "$installed"
export PYTHONPATH="$installed:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
"$python" tools/trainers_check/check.py "$@"
