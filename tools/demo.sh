#!/bin/bash
# Installs what is missing, builds the daemons and runs the demo: tools/demo.sh [--help | OPTION...]
#
# A trainer and rollout engines learn together; their weights go through the daemons only. Ends with
# a verdict; the exit status is 0 only when every claim holds. --help lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh
tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress \
  //tools/demo //tools/dwsctl
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
export DWSCTL="$binaries/tools/dwsctl/dwsctl"  # named by --keep
exec "$binaries/tools/demo/demo" "$@"
