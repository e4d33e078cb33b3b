#!/bin/bash
# Runs real trainers on the CPU (transformers.Trainer, FSDP2, TRL's GRPO) beside real daemons, and compares the bits
# of what an engine got with the trainer's:
#
#   tools/trainers_check.sh --python PYTHON      PYTHON: of an environment with torch, numpy, grpcio and protobuf, and
#                                                transformers, accelerate, trl and datasets for their cases; by default
#                                                $DWS_TRAINERS_PYTHON
#   tools/trainers_check.sh --cases=hf,fsdp2     some of the cases
#   tools/trainers_check.sh --logs=FOLDER        keeps the logs of trainers and engines
#
# Without such a Python it is skipped with a message, and so is each case that lacks a package. A line for each case;
# each ends within ten minutes. LD_LIBRARY_PATH and PYTHONPATH are for that Python alone. docs/trainers.md says what
# is checked.
set -euo pipefail

python="${DWS_TRAINERS_PYTHON:-}"
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python}"; shift 2 ;;
    --cases=*) options+=("$1"); shift ;;
    --logs=*) options+=("--logs=$(realpath -m "${1#*=}")"); shift ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "trainers_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

if [[ -z "$python" ]]; then
  echo "skipped: no Python with torch is named (--python or DWS_TRAINERS_PYTHON)"
  exit 0
fi
if ! python="$(realpath -se "$(command -v "$python")" 2>/dev/null)"; then
  echo "skipped: the Python that is named does not exist"
  exit 0
fi
if ! "$python" -c 'from torch.distributed.fsdp import fully_shard' 2>/dev/null; then
  echo "skipped: $python has no torch with fully_shard (2.6 or newer)"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
libraries="${LD_LIBRARY_PATH:-}"
modules="${PYTHONPATH:-}"
unset LD_LIBRARY_PATH PYTHONPATH
tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress //tools/trainers_check
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
if [[ -n "$libraries" ]]; then export LD_LIBRARY_PATH="$libraries"; fi
if [[ -n "$modules" ]]; then export PYTHONPATH="$modules"; fi
exec "$binaries/tools/trainers_check/trainers_check" "$python" ${options[@]+"${options[@]}"}
