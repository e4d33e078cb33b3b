#!/bin/bash
# Builds everything that needs a GPU to be checked, and packs it for a machine that has a driver and
# nothing of DWS:
#
#   tools/gpu_check.sh              dist/gpu_check.tar.xz: unpack it there, run gpu_check/run.sh
#   tools/gpu_check.sh --dry-run    the same, then runs it here over the tests' fake driver at a small
#                                   size. What it measures means nothing, and is not kept
#
# It is the default build, packed with the libraries it is linked to: after a build of the tree it takes seconds. With the
# CUDA toolkit (CUDA_HOME, or /usr/local/cuda) the programs contain the device kernels; without it only a dry run is
# useful, and the script prints that. docs/gpu.md says what the other machine needs. BAZEL_FLAGS as for tools/bazel.sh.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

dry_run=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --dry-run) dry_run=1; shift ;;
    *) echo "gpu_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

tools/install.sh >&2
flags=()
if [[ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]]; then
  flags+=(--config=cuda)
elif [[ "$dry_run" == 1 ]]; then
  echo "gpu_check.sh: no CUDA toolkit here: a dry run of the host's kernels only" >&2
else
  echo "gpu_check.sh: ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc: not found. Install the CUDA toolkit 13," \
    "or set CUDA_HOME to where it is" >&2
  exit 1
fi
targets=(//tools/gpu_check //tests/gpu:gpu_tests //sender_daemon:dws-sender
  //receiver_daemon:dws-receiver //clients/python:wheel //tests/fakes/cuda:libcuda //tests/fakes/nccl:libnccl)
tools/bazel.sh build --noshow_progress "${flags[@]}" "${targets[@]}" >&2
built="$(tools/bazel.sh info --noshow_progress "${flags[@]}" bazel-bin 2>/dev/null)"

commit="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
if [[ -n "$(git status --porcelain 2>/dev/null)" ]]; then commit+=-modified; fi
mkdir -p dist
tools/gpu_check/pack.sh "$built" "$commit" dist/gpu_check.tar.xz
size="$(stat -c %s dist/gpu_check.tar.xz)"
echo "dist/gpu_check.tar.xz: $((size >> 20)) MiB" >&2
if ((size > 40 << 20)); then
  echo "gpu_check.sh: the archive is larger than 40 MiB, the most that is allowed" >&2
  exit 1
fi

if [[ "$dry_run" == 1 ]]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  tar -C "$work" -xJf dist/gpu_check.tar.xz
  GPU_CHECK_DRIVER="$built/tests/fakes/cuda/lib:$built/tests/fakes/nccl/lib" \
    PYTHON="${PYTHON:-/usr/bin/python3}" "$work/gpu_check/run.sh" --out "$work/results.json" --size=8MiB --rounds=2 \
    --time-factor=10
fi
