#!/bin/bash
# Runs real trainers on the CPU (transformers.Trainer, FSDP, DeepSpeed, TRL's GRPO) beside real daemons, and compares the bits
# of what an engine got with the trainer's:
#
#   tools/trainers_check.sh --python PYTHON      PYTHON: of an environment with torch, numpy, grpcio and protobuf, and
#                                                transformers, accelerate, trl, datasets, megatron-core and
#                                                deepspeed for their cases; by default $DWS_TRAINERS_PYTHON
#   tools/trainers_check.sh --cases=hf,fsdp2     some of the cases
#   tools/trainers_check.sh --logs=FOLDER        keeps the logs of trainers and engines
#
# If no Python is named it is skipped with a message, and so is each case that lacks a package, unless --cases names it.
# A line for each case; each ends within ten minutes. LD_LIBRARY_PATH and PYTHONPATH are for that Python alone. docs/trainers.md says what
# is checked.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

python="${DWS_TRAINERS_PYTHON:-}"
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python}"; shift 2 ;;
    --cases=*) options+=("$1"); shift ;;
    --logs=*) options+=("--logs=$(realpath -m "${1#*=}")"); shift ;;
    *) echo "trainers_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

require_python "$python" "torch with fully_shard (2.6 or newer)" DWS_TRAINERS_PYTHON \
  'from torch.distributed.fsdp import fully_shard'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_beside //tools/trainers_check
exec "$binaries/tools/trainers_check/trainers_check" "$python" ${options[@]+"${options[@]}"}
