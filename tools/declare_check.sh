#!/bin/bash
# Compares the tensors that dws.declare gives for a module with those that transformers saves, family by family:
#
#   tools/declare_check.sh --python PYTHON    PYTHON: of an environment with torch, transformers 5 or newer, safetensors,
#                                             numpy, grpcio and protobuf; by default $DWS_ENGINE_PYTHON
#
# It also runs the test of dws.declare with that torch. If no Python is named it is skipped with a message.
# LD_LIBRARY_PATH is for that Python alone.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

python="${DWS_ENGINE_PYTHON:-}"
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python with transformers}"; shift 2 ;;
    *) echo "declare_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

require_python "$python" "transformers 5 or newer" DWS_ENGINE_PYTHON \
  'from importlib.metadata import version as v; assert int(v("transformers").split(".")[0]) >= 5'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_beside //clients/python:wheel
installed="$(mktemp -d)"
trap 'rm -rf "$installed"' EXIT
/usr/bin/python3 -m zipfile -e "$binaries/clients/python/dws.whl" "$installed"
export PYTHONPATH="$installed:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 HF_HUB_OFFLINE=1
"$python" tools/declare_check/check.py
"$python" tests/clients/python/declare/declare_test.py
