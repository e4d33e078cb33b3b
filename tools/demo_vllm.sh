#!/bin/bash
# A trainer and a real vLLM, on the CPU, learn together; their weights go through the daemons only:
#
#   tools/demo_vllm.sh --python PYTHON [OPTION...]    PYTHON: of an environment with vLLM and transformers, numpy, grpcio
#                                                     and protobuf; by default $DWS_ENGINE_PYTHON
#   tools/demo_vllm.sh --python PYTHON --help         lists the options
#
# Ends with a verdict, within five minutes on two processors that do nothing else; the exit status is 0 only when every
# claim holds. Without vLLM it is skipped with a message. LD_LIBRARY_PATH is for the trainer and vLLM alone.
set -euo pipefail

python="${DWS_ENGINE_PYTHON:-}"
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python with vLLM}"; shift 2 ;;
    *) options+=("$1"); shift ;;
  esac
done

if [[ -z "$python" ]]; then
  echo "skipped: no Python with vLLM is named (--python or DWS_ENGINE_PYTHON)"
  exit 0
fi
if ! python="$(realpath -se "$(command -v "$python")" 2>/dev/null)"; then
  echo "skipped: the Python that is named does not exist"
  exit 0
fi
if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("vllm") and u.find_spec("transformers")))'; then
  echo "skipped: $python has no vLLM with transformers"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
libraries="${LD_LIBRARY_PATH:-}"
unset LD_LIBRARY_PATH PYTHONPATH
tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress //tools/demo_vllm
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
if [[ -n "$libraries" ]]; then export LD_LIBRARY_PATH="$libraries"; fi
exec "$binaries/tools/demo_vllm/demo_vllm" "$python" ${options[@]+"${options[@]}"}
