#!/bin/bash
# Installs what is missing, builds the daemons and runs the demo: tools/demo.sh [OPTION...]
#
#   --steps N                  policy-gradient steps (80)
#   --warm-up N                supervised steps before (80)
#   --engines N                rollout engines (2)
#   --ranks N                  trainer ranks, each owns rows (1)
#   --trainer plain|fsdp2      plain: one process has all ranks; fsdp2: each rank is a process of FSDP2 (plain)
#   --python PYTHON            for fsdp2: of an environment with torch 2.6 or newer, numpy, grpcio and protobuf; by
#                              default $DWS_TRAINERS_PYTHON
#   --engine-tp N              tensor-parallel ranks of each engine, a process each, with slices of the weights (1)
#   --seed N                   of everything random (1)
#   --keep                     leave the daemons running, and build dwsctl to look at them
#   --flip-bit                 flip one bit of one engine's weights without DWS: the demo must fail
#
# A trainer and rollout engines learn together; their weights go through the daemons only. Ends with
# a verdict; the exit status is 0 only when every claim holds.
# LD_LIBRARY_PATH is for the Python that --python names.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

targets=(//tools/demo)
for option in "$@"; do
  if [[ $option == --keep ]]; then targets+=(//tools/dwsctl); fi
done
# shellcheck source=tools/shell/demo.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/demo.sh"
export DWSCTL="$binaries/tools/dwsctl/dwsctl"  # named by --keep
exec "$binaries/tools/demo/demo" ${options[@]+"${options[@]}"}
