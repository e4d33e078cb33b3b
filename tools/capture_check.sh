#!/bin/bash
# Compares the mappings that attaching makes with what real engines load, on the CPU and with random weights: each
# parameter has to be, to the bit, what its mapping gathers from the checkpoint.
#
#   tools/capture_check.sh --engines=FOLDER   FOLDER: of the engines' environments, as tools/real_engines.sh --install
#                                             makes them; $DWS_ENGINES by default
#   tools/capture_check.sh --only='vllm/*/tp2'
#                                             some cases: ENGINE/MODEL/tpN, with -ppN, -dpN and -PLACEMENT of experts
#
# Models of several ranks are loaded in as many processes. An engine that is not there is skipped with a message.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

folder="${DWS_ENGINES:-}"
only='*'
while [[ $# -gt 0 ]]; do
  case "$1" in
    --engines=*) folder="${1#*=}"; shift ;;
    --only=*) only="${1#*=}"; shift ;;
    *) echo "capture_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

if [[ -z "$folder" ]]; then
  echo "skipped: no folder with engines is named (--engines or DWS_ENGINES); tools/real_engines.sh --install makes one"
  exit 0
fi
folder="$(realpath -m "$folder")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_beside //clients/python:wheel
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
/usr/bin/python3 -m zipfile -e "$binaries/clients/python/dws.whl" "$scratch/dws"
export PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
PYTHONPATH="$PWD" /usr/bin/python3 -m tools.capture_check.engines "--engines=$folder" "--only=$only" \
  "--modules=$scratch/dws:$PWD" "--checkpoints=$scratch/checkpoints"
