#!/bin/bash
# Compares the quantisation recipes with the libraries that define them, bit for bit: compressed-tensors, torchao,
# nvidia-modelopt and vLLM, all on the CPU.
#
#   tools/quantise_check.sh --python PYTHON      PYTHON: of an environment with torch and numpy, and the libraries for their
#                                                recipes; by default $DWS_QUANTISE_PYTHON
#   tools/quantise_check.sh --verbose            also how codes of NaN and infinity differ
#
# If no Python is named it is skipped with a message, and so are the recipes of a library that is not installed. A line for
# each recipe and library; it takes a minute. common/quantise/RECIPES.md has the definitions.
set -euo pipefail
# shellcheck source=tools/optional_python.sh
source "$(dirname "${BASH_SOURCE[0]}")/optional_python.sh"

python="${DWS_QUANTISE_PYTHON:-}"
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python=*) python="${1#*=}"; shift ;;
    --python) python="${2:?--python: expected the path of a Python}"; shift 2 ;;
    --verbose) options+=("$1"); shift ;;
    *) echo "quantise_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

require_python "$python" "torch with float8_e4m3fn" DWS_QUANTISE_PYTHON 'import numpy, torch; torch.float8_e4m3fn'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build_beside //tests/common/quantise:quantise_file
# Eager: what is compared is each library's own arithmetic, not a compiler's of it.
TORCHDYNAMO_DISABLE=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 \
  exec "$python" -W ignore tests/common/quantise/library_check.py \
  "$binaries/tests/common/quantise/quantise_file" ${options[@]+"${options[@]}"}
