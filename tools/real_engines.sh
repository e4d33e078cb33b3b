#!/bin/bash
# Runs real vLLM and SGLang, on the CPU, beside real daemons, and compares them with engines that were started with
# each version's checkpoint:
#
#   tools/real_engines.sh --install FOLDER    makes the engines' environments there: with pip, 3.5 GB each
#   tools/real_engines.sh --engines=FOLDER    runs what is checked by default: 60 starts of engines;
#                                             the folder is $DWS_ENGINES by default
#   tools/real_engines.sh --only='sglang/*/tp1/plugin,vllm/torn/v2'
#                                             some cells: ENGINE/MODEL/tpN/CHECK, ENGINE/torn/MODE
#   tools/real_engines.sh --all               all of them
#   tools/real_engines.sh --list              prints the cells that would run
#   tools/real_engines.sh --seconds=60        of requests in each search for torn passes, 20 by default
#   tools/real_engines.sh --minutes=30        after which no cell begins, 60 by default
#   tools/real_engines.sh --results=FILE      adds what it finds to the file; the table is of all that is there
#   tools/real_engines.sh --logs=FOLDER       keeps the engines' logs
#
# Without engines it is skipped with a message. Otherwise a line for each cell, and a table at the end; the exit status
# is 0 when each cell is as it should be. docs/engines.md says what is checked.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

folder="${DWS_ENGINES:-}"
install=""
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --install) install="$(realpath -m "${2:?--install: expected a folder}")"; shift 2 ;;
    --install=*) install="$(realpath -m "${1#*=}")"; shift ;;
    --engines=*) folder="${1#*=}"; shift ;;
    --results=*) options+=("--results=$(realpath -m "${1#*=}")"); shift ;;
    --logs=*) options+=("--logs=$(realpath -m "${1#*=}")"); shift ;;
    --only=* | --seconds=* | --minutes=* | --all | --list) options+=("$1"); shift ;;
    *) echo "real_engines.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -n "$install" ]]; then
  exec env PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m tools.real_engines.install.install "$install"
fi
if [[ -z "$folder" ]]; then
  echo "skipped: no folder with engines is named (--engines or DWS_ENGINES); --install makes one"
  exit 0
fi
folder="$(realpath -m "$folder")"
if [[ ! -x "$folder/vllm/bin/python" && ! -x "$folder/sglang/bin/python" ]]; then
  echo "skipped: $folder has neither vLLM nor SGLang; --install makes them"
  exit 0
fi
tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress //tools/real_engines
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
exec "$binaries/tools/real_engines/real_engines" "--engines=$folder" ${options[@]+"${options[@]}"}
