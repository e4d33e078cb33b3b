#!/bin/bash
# Builds one benchmark optimised and runs it: tools/bench.sh balance|codec|control|e2e|gate|gather|gpu|mesh|on_demand|pulse_loco|quantised|slime|wide [OPTION...]
# Its options: tools/bazel.sh run //tools/bench:NAME -- --help
#
# balance: bubble rates of balanced minibatches beside published ones; --write=$PWD/docs/on-demand.md puts them into that
# page. codec: the codec, capture, staging and commit, and the daemons' pauses and memory. control: the control
# plane, and receivers that join or are slow. e2e: publish to last ACK against slime's path and a full copy, over loopback and
# files, and as root over links of several speeds; full versions; what is chosen at each density. mesh: full
# weights on one host (--peers=PYTHON: beside Mooncake), and as root between hosts in network namespaces; layouts of
# published models. on_demand [accumulate|hosts|training]: gradients that are added on one host; gathers between hosts, as root
# over links; samples a second beside lock-step and FSDP2, which needs torch 2.9 (--python, or $DWS_ENGINES).
# quantised: deltas and captures of views, beside those of BF16. slime: its version folders, published and applied by
# both. gate: bytes, and instructions of each stage, against committed ones, which --update replaces; of the default
# build, which a test compares, too. gpu: a model, not a measurement, of what trainer and engine wait for with
# weights on a GPU (docs/performance.md). gather: units whose shards have several owners on one host, beside copies.
# pulse_loco: a small model trained by workers that send what changes a BF16 weight, beside DiLoCo: losses, and bytes.
# wide: one sender with 10, 100 and 1,000 receivers (--only=receivers); as root over slow links: engines that join at
# once (--only=joiners), a store behind a long link (--only=ranges), regions with caches (--only=regions).
#
# CSV on stdout and nothing else, a table with the bars on stderr. codec and quantised without --trace: the recorded
# trace beside this checkout if there is one, else the excerpt of it in tests/data.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name="${1:?usage: tools/bench.sh balance|codec|control|e2e|gate|gather|gpu|mesh|on_demand|pulse_loco|quantised|slime|wide [OPTION...]; see --help}"
shift
target="//tools/bench:$name"
tools/install.sh >&2
config=(--config=opt)
if [[ "$name" == gate ]]; then config=(); fi
tools/bazel.sh build "${config[@]}" --noshow_progress "$target" >&2
bin="$(tools/bazel.sh info "${config[@]}" --noshow_progress bazel-bin 2>/dev/null)"

if [[ ("$name" == codec || "$name" == quantised) && " $* " != *" --trace"[\ =]* ]]; then
  steps="$(mktemp -d)"
  trap 'rm -rf "$steps"' EXIT
  if [[ -f ../shared/data/rl_trace/unpack.py ]]; then
    /usr/bin/python3 ../shared/data/rl_trace/unpack.py "$steps" >&2
  else
    /usr/bin/python3 tests/data/rl_trace_excerpt/excerpt.py unpack "$steps" >&2
  fi
  set -- "$@" --trace "$steps"
fi
"$bin/tools/bench/$name" "$@"
