#!/bin/bash
# Runs the codec benchmark from runfiles, its own or those it was started in: codec_bench, then the part
# that starts daemons.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
tools/bench/codec_bench "$@"

daemons=1
previous=""
for argument in "$@"; do
  if [[ "$previous" == --only ]]; then argument="--only=$argument"; fi
  previous="$argument"
  case "$argument" in
    -h | --help | --no-daemons) daemons=0 ;;
    --only=*daemons*) ;;
    --only=*) daemons=0 ;;
  esac
done
[[ $daemons -eq 1 ]] || exit 0
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec /usr/bin/python3 tools/bench/daemons/codec_daemons.py "$@"
