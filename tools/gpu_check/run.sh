#!/bin/bash
# Runs everything that gpu_check has on this machine, from the folder it was unpacked in:
#
#   ./run.sh [--out FILE] [GPU_CHECK-OPTION...]     ./run.sh --size=1GiB --only=info,kernels
#
# Writes FILE (default results.json): date, machine, command and all results. One line for each check on
# stdout; the last has the totals. The exit status is 0 when none failed.
#
#   PYTHON            the interpreter that has torch, grpcio and protobuf (default python3)
#   GPU_CHECK_DRIVER  folders, with colons between, of a libcuda.so.1 and a libnccl.so.2 to use instead
#                     of the machine's: fake ones. What they measure means nothing, and is marked.
#                     PyTorch does not run over them: its checks keep all weights on the host
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

out=results.json
options=()
only=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --out) out="${2:?--out FILE}"; shift 2 ;;
    --out=*) out="${1#--out=}"; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --only=*) only="${1#--only=}"; shift ;;
    *) options+=("$1"); shift ;;
  esac
done

device=cuda
if [[ -n "${GPU_CHECK_DRIVER:-}" ]]; then
  device=cpu
  export LD_LIBRARY_PATH="$GPU_CHECK_DRIVER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
command="./run.sh${options[*]:+ ${options[*]}}${only:+ --only=$only}"
status=0

# torch_check.py is a section of its own.
sections="${only//torch/}"
sections="$(sed 's/,,*/,/g; s/^,//; s/,$//' <<<"$sections")"
if [[ -z "$only" || -n "$sections" ]]; then
  "$here/bin/gpu_check" "${options[@]}" ${sections:+--only="$sections"} | tee "$lines" || status=1
fi
if [[ -z "$only" || ",$only," == *,torch,* ]]; then
  PYTHONPATH="$here/python${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python3}" \
    "$here/python/tools/gpu_check/torch_check.py" --bin="$here/bin" --device="$device" | tee -a "$lines" || status=1
fi

"${PYTHON:-python3}" "$here/python/tools/gpu_check/collect.py" "$lines" "$out" "$command" "$(cat "$here/commit")" || status=1
exit "$status"
