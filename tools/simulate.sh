#!/bin/bash
# Simulates the protocol under faults: tools/simulate.sh [--model MODEL] [--seeds N] [--first S] [--trace | --mutations]
#
# Trainers, senders, receivers, engines and commit groups run on a simulated clock, network and disk, N courses
# of events (1000) from seed S (1) on. Stops at the first that violates a promise of docs/protocol.md, prints
# what happened in it and its seed, and exits with 1.
#
#   --model       sync: as above; train: ranks and senders of on-demand training, and the promises of
#                 docs/on-demand.md
#   --trace       print what happens in every course
#   --mutations   counts the seeds until each broken rule is noticed (sixteen of sync, 22 of train); fails when
#                 one is not
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh
tools/bazel.sh build --config=opt //tests/simulation:simulate
exec "$(tools/bazel.sh info --config=opt bazel-bin 2>/dev/null)/tests/simulation/simulate" "$@"
