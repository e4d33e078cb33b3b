#!/bin/bash
# Quickstart of slime (docs/quickstart/slime.md): an SGLang server that slime does not know, beside slime's version folders.
#
#   follow_slime.sh BASE VERSIONS LOCAL [OPTION OF SGLANG...]
#
# BASE is the checkpoint of slime's --hf-checkpoint, VERSIONS its --update-weight-disk-dir, LOCAL this host's own copy of
# BASE, which is made if it is missing. A dws-receiver brings LOCAL to each version, and has the server load it.
# $PORT is the server's port (30000), $PYTHON the Python of SGLang (python3). Ends both with ^C.
set -euo pipefail
base="${1:?BASE: the checkpoint that slime began with}" versions="${2:?VERSIONS: the folder of the versions}"
copy="${3:?LOCAL: the folder of the copy}"
shift 3
port="${PORT:-30000}" run=/tmp/dws-quickstart/slime
versions="$(realpath -m "$versions")" copy="$(realpath -m "$copy")"  # the server opens the copy by its path

# A copy without links: the receiver changes it in place.
if [[ ! -e "$copy" ]]; then  # whole or not at all
  rm -rf "$copy.part"
  cp -r --dereference "$base" "$copy.part"
  mv "$copy.part" "$copy"
fi
(umask 077 && mkdir -p "$run")
mkdir -p "$versions"

"${PYTHON:-python3}" -m sglang.launch_server --model-path "$copy" --port "$port" --skip-server-warmup "$@" &
server=$!
dws-receiver --job-id=slime --receiver-id="$(hostname)-$port" --socket="$run/receiver.sock" --state-dir="$run/state" \
  --slime-dir="$versions" --checkpoint="$copy" --engine-url="http://127.0.0.1:$port" &
receiver=$!
trap 'kill "$server" "$receiver" 2>/dev/null; wait "$server" "$receiver"' EXIT
wait -n "$server" "$receiver"  # without one the other is of no use
