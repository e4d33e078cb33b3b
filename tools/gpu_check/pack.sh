#!/bin/bash
# Packs gpu_check with all that it runs: pack.sh BUILT COMMIT OUT.tar.gz
#
# Run it at the top of the tree, or of a test's runfiles. BUILT is the folder of what was built there: bazel-bin, or "."
# in runfiles. The Python client is the wheel, unpacked: BUILD files list its modules, and nothing else does.
set -euo pipefail
built="$1" commit="$2" out="$3"
umask 022

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
pack="$work/gpu_check"
mkdir -p "$pack/bin" "$pack/python/tests/integration" "$pack/python/tools/gpu_check"
for program in tools/gpu_check/gpu_check tests/gpu/gpu_tests sender_daemon/dws-sender \
  receiver_daemon/dws-receiver; do
  strip --strip-unneeded -o "$pack/bin/${program##*/}" "$built/$program"
  chmod 755 "$pack/bin/${program##*/}"
done
/usr/bin/python3 -m zipfile -e "$built/clients/python/dws.whl" "$pack/python"
install -m 644 tests/integration/cluster.py "$pack/python/tests/integration"
install -m 755 tools/gpu_check/run.sh "$pack"
install -m 644 tools/gpu_check/*.py "$pack/python/tools/gpu_check"
echo "$commit" >"$pack/commit"
tar -C "$work" --owner=0 --group=0 --numeric-owner -czf "$out" gpu_check
