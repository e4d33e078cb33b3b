#!/bin/bash
# Builds the daemons and trains a small transformer on demand, beside FSDP2 over gloo and beside lock-step:
# tools/demo_on_demand.sh [OPTION...]
#
#   --python PYTHON     with torch 2.9 or newer, numpy, grpcio and protobuf; by default that of $DWS_ENGINES/vllm, which
#                       tools/real.sh install makes
#   --ranks N           trainer ranks, a process each (4)
#   --steps N           (24)
#   --kill-step N       the step in which a rank is killed (half of the steps)
#   --seed N            of everything random (1)
#
# Sequences have the shape of LongAlign's, scaled to 1,024 tokens. One rollout engine follows the run on demand. A rank is
# killed in the middle of a minibatch: the others name it, all ranks start again from the checkpoint of the step before,
# and do the step again. Ends with a verdict; the exit status is 0 only when every claim holds.
# LD_LIBRARY_PATH is for the Python that --python names.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

targets=(//tools/demo:demo_on_demand)
# shellcheck source=tools/shell/demo.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/demo.sh"
exec "$binaries/tools/demo/demo_on_demand" ${options[@]+"${options[@]}"}
