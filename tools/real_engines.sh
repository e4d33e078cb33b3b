#!/bin/bash
# Runs real vLLM or SGLang, on the CPU, beside real daemons, and looks for passes that a commit has torn:
#
#   tools/real_engines.sh --python PYTHON     PYTHON: of an environment with vLLM or SGLang, numpy, grpcio and
#                                             protobuf; by default $DWS_ENGINE_PYTHON
#   tools/real_engines.sh --modes=v1,v2-tp2   some ways to run it. vLLM: model runner V1 or V2, asynchronous
#                                             scheduling (-async), weight transfer (-native);
#                                             SGLang: models, without overlap (-serial);
#                                             both: two tensor-parallel ranks (-tp2)
#   tools/real_engines.sh --seconds=60        of requests in each mode, 20 by default; starts come on top
#   tools/real_engines.sh --logs=FOLDER       keeps the engines' logs
#   tools/real_engines.sh --install FOLDER    makes environments with the engines there: with pip, 3.5 GB each
#
# Without an engine it is skipped with a message. Otherwise a line for each mode; the exit status is 0 when no pass
# was torn in any. LD_LIBRARY_PATH and PYTHONPATH are for the engine alone. docs/engines.md says what is checked.
set -euo pipefail

python="${DWS_ENGINE_PYTHON:-}"
install=""
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of the engine\'s Python}"; shift 2 ;;
    --install) install="$(realpath -m "${2:?--install: expected a folder}")"; shift 2 ;;
    --install=*) install="$(realpath -m "${1#*=}")"; shift ;;
    --logs=*) options+=("--logs=$(realpath -m "${1#*=}")"); shift ;;
    --modes=* | --seconds=*) options+=("$1"); shift ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "real_engines.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

if [[ -n "$install" ]]; then
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  exec env PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m tools.real_engines.install.install "$install"
fi
if [[ -z "$python" ]]; then
  echo "skipped: no Python with vLLM or SGLang is named (--python or DWS_ENGINE_PYTHON)"
  exit 0
fi
if ! python="$(realpath -se "$(command -v "$python")" 2>/dev/null)"; then
  echo "skipped: the Python that is named does not exist"
  exit 0
fi
if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("vllm") or u.find_spec("sglang")))'; then
  echo "skipped: $python has neither vLLM nor SGLang"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
libraries="${LD_LIBRARY_PATH:-}"
modules="${PYTHONPATH:-}"
unset LD_LIBRARY_PATH PYTHONPATH
tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress //tools/real_engines
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
if [[ -n "$libraries" ]]; then export LD_LIBRARY_PATH="$libraries"; fi
if [[ -n "$modules" ]]; then export PYTHONPATH="$modules"; fi
exec "$binaries/tools/real_engines/real_engines" "$python" ${options[@]+"${options[@]}"}
