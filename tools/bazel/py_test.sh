#!/bin/bash
# Runs a dws_py_test: the system's Python (it has grpc, protobuf, numpy), the workspace's runfiles as
# the working directory, the client library importable.
set -euo pipefail
script="$1"
shift
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 "$script" "$@"
