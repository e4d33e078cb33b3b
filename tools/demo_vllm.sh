#!/bin/bash
# A trainer and a real vLLM, on the CPU, learn together; their weights go through the daemons only:
#
#   tools/demo_vllm.sh --python PYTHON [OPTION...]    PYTHON: of an environment with vLLM and transformers, numpy, grpcio
#                                                     and protobuf; by default $DWS_ENGINE_PYTHON
#   --steps N             policy-gradient steps (50)
#   --warm-up N           supervised steps before (100)
#   --seed N              of everything random (1)
#   --limit N             seconds for all of it (900)
#   --stale-checkpoint    compare with the checkpoint of the version before the last: the demo must fail
#
# Ends with a verdict, within five minutes on two processors that do nothing else; the exit status is 0 only when every
# claim holds. If no Python is named it is skipped with a message. LD_LIBRARY_PATH is for the trainer and vLLM alone.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

python="${DWS_ENGINE_PYTHON:-}"
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python with vLLM}"; shift 2 ;;
    *) options+=("$1"); shift ;;
  esac
done

require_python "$python" "vLLM and transformers" DWS_ENGINE_PYTHON \
  'import importlib.util as u; lacks = [n for n in ("vllm", "transformers") if not u.find_spec(n)]; assert not lacks, lacks'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_beside //tools/demo_vllm
exec "$binaries/tools/demo_vllm/demo_vllm" "$python" ${options[@]+"${options[@]}"}
