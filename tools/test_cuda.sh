#!/bin/bash
# Builds what --config=cuda changes and runs its tests, where the CUDA toolkit is: tools/test_cuda.sh
#
# No GPU is needed: the kernels are compiled and carried, our declarations are compared with <cuda.h> and <nccl.h>, and
# the programs of such a build start and commit over host memory without a driver. The arguments go to
# tools/test.sh, and the last line is its. Without a toolkit it prints one line that nothing was tested.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

home="${CUDA_HOME:-/usr/local/cuda}"
if [[ ! -x "$home/bin/nvcc" ]]; then
  echo "test_cuda.sh: SKIPPED, --config=cuda was not built: there is no $home/bin/nvcc (CUDA toolkit 13)"
  exit 0
fi

targets=(//sender_daemon:dws-sender //receiver_daemon:dws-receiver)
if [[ -f "$home/include/nccl.h" ]]; then targets+=(//common/transport/nccl:nccl_api_check); fi
tools/bazel.sh build --config=cuda "${targets[@]}"
exec tools/test.sh --config=cuda "$@" //tests:cuda_build
