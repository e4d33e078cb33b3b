#!/bin/bash
# Runs tools.real.main from its runfiles, where the daemons are. The client is that of the wheel, with its entry points.
set -euo pipefail
cd "$0.runfiles/dws"
installed="$(mktemp -d)"
trap 'rm -rf "$installed"' EXIT
/usr/bin/python3 -m zipfile -e clients/python/dws.whl "$installed"
export PYTHONPATH="$installed:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
REAL_CHECK_INSIDE=1 /usr/bin/python3 -m tools.real.main "$@"
