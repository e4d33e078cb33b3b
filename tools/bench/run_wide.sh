#!/bin/bash
# Runs the figures of wide networks from runfiles, its own or those it was started in: all, or --only=CASE.
# CASE: regions. They need root and network namespaces.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
only=""
if [[ "${1:-}" == --only=* ]]; then
  only="${1#--only=}"
  shift
fi
echo id,case,ours,reference,ratio,unit
for part in regions; do
  if [[ -z "$only" || "$only" == "$part" ]]; then /usr/bin/python3 "tools/bench/wide/$part.py" "$@"; fi
done
