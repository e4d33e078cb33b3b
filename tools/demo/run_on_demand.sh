#!/bin/bash
# Runs the demo of training on demand from its runfiles. The trainer's ranks and the engine have a Python of their own.
set -euo pipefail
cd "$0.runfiles/dws"
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 -m tools.demo.on_demand.demo "$@"
