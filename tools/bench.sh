#!/bin/bash
# Builds one benchmark optimised and runs it: tools/bench.sh codec [--mi-elements N] [--trace DIR] [--csv FILE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name="${1:?usage: tools/bench.sh codec [ARGUMENT...]}"
shift
target="//tools/bench:${name}_bench"
tools/bazel.sh build --config=opt --noshow_progress "$target"
bin="$(tools/bazel.sh info --config=opt --noshow_progress bazel-bin 2>/dev/null)"
exec "$bin/tools/bench/${name}_bench" "$@"
