#!/bin/bash
# Runs the benchmarks of training on demand from runfiles, its own or those it was started in: both, or the part that is
# named, with its options.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
export PYTHONPATH="$PWD/clients/python:$PWD" PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1

accumulate() {
  tools/bench/accumulate_bench "$@" | tail -n +2  # the head is there
}

training() {
  /usr/bin/python3 -m tools.bench.training.train_bench "$@"
}

hosts() {
  /usr/bin/python3 -m tools.bench.training.hosts_bench "$@"
}

part="${1:-}"
if [[ $# -gt 0 ]]; then shift; fi
case "$part" in
  "") echo id,case,ours,reference,ratio,unit; accumulate "$@"; hosts "$@"; training "$@" ;;
  accumulate | hosts | training)
    if [[ " $* " != *" --help "* ]]; then echo id,case,ours,reference,ratio,unit; fi
    "$part" "$@"
    ;;
  *) echo "tools/bench.sh on_demand: expected accumulate, hosts, training or nothing, found $part" >&2; exit 2 ;;
esac
