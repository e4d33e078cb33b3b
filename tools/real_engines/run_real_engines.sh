#!/bin/bash
# Runs the check from its runfiles: run_real_engines.sh PYTHON [OPTION...], PYTHON with vLLM or SGLang in it.
# The client is that of the wheel, with its entry points.
set -euo pipefail
python="$1"
shift
cd "$0.runfiles/dws"
installed="$(mktemp -d)"
trap 'rm -rf "$installed"' EXIT
/usr/bin/python3 -m zipfile -e clients/python/dws.whl "$installed"
export PYTHONPATH="$installed:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
"$python" tools/real_engines/check.py "$@"
