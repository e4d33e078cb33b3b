#!/bin/bash
# Runs everything that gpu_check has on this machine, from the folder it was unpacked in:
#
#   ./run.sh [--out FILE] [OPTION...] [GPU_CHECK-OPTION...]     ./run.sh --size=1GiB --only=info,kernels
#
# Writes FILE (default results.json): date, machine, command and all results. One line for each check on
# stdout; the last has the totals. The exit status is 0 when none failed.
#
#   --only=A,B        only these sections: those of gpu_check, and torch, job, fsdp, on_demand and sanitize
#   --job-sizes=A,B   billions of parameters of the section job's models (default 0.9,2.8), --fsdp-sizes of fsdp's (0.9)
#   --job-deltas=N    deltas of each (default 8), --fsdp-deltas likewise (4)
#   --sanitize        the section sanitize too: gpu_tests under compute-sanitizer, up to eight minutes more
#
#   PYTHON            the interpreter that has torch, grpcio and protobuf (default python3)
#   GPU_CHECK_DRIVER  folders, with colons between, of a libcuda.so.1 and a libnccl.so.2 to use instead
#                     of the machine's: fake ones. What they measure means nothing, and is marked.
#                     PyTorch does not run over them: its checks keep all weights on the host
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

out=results.json
command=./run.sh
options=()
job_options=()
fsdp_options=()
only=""
sanitize=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --out) out="${2:?--out FILE}"; shift 2; continue ;;
    --out=*) out="${1#--out=}"; shift; continue ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --only=*) only="${1#--only=}" ;;
    --job-sizes=* | --job-deltas=*) job_options+=("--${1#--job-}") ;;
    --fsdp-sizes=* | --fsdp-deltas=*) fsdp_options+=("--${1#--fsdp-}") ;;
    --sanitize) sanitize=1 ;;
    *) options+=("$1") ;;
  esac
  command+=" $1"
  shift
done

device=cuda
if [[ -n "${GPU_CHECK_DRIVER:-}" ]]; then
  device=cpu
  export LD_LIBRARY_PATH="$GPU_CHECK_DRIVER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
status=0

# These sections are Python's; all others are those of the program.
wanted() { [[ -z "$only" || ",$only," == *",$1,"* ]]; }
in_python() {  # SCRIPT OPTION...
  PYTHONPATH="$here/python${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python3}" \
    "$here/python/tools/gpu_check/$1" --bin="$here/bin" --device="$device" "${@:2}" | tee -a "$lines" || status=1
}
sections="$(tr ',' '\n' <<<"$only" | grep -vxE '|torch|job|fsdp|on_demand|sanitize' | paste -sd,)" || true
if [[ -z "$only" || -n "$sections" ]]; then
  "$here/bin/gpu_check" "${options[@]}" ${sections:+--only="$sections"} | tee "$lines" || status=1
fi
if wanted torch; then in_python torch_check.py; fi
if wanted job; then in_python job_check.py "${job_options[@]}"; fi
if wanted fsdp; then in_python job_check.py --section=fsdp "${fsdp_options[@]}"; fi
if wanted on_demand; then in_python on_demand_check.py; fi
if [[ "$sanitize" == 1 || ",$only," == *,sanitize,* ]]; then in_python sanitize_check.py; fi

"${PYTHON:-python3}" "$here/python/tools/gpu_check/collect.py" "$lines" "$out" "$command" "$(cat "$here/commit")" || status=1
exit "$status"
