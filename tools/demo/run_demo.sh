#!/bin/bash
# Runs the demo from its runfiles, with the system's Python (it has grpc, numpy and torch).
set -euo pipefail
cd "$0.runfiles/dws"
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 tools/demo/demo.py "$@"
