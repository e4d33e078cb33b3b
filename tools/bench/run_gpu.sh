#!/bin/bash
# Runs the modelled job from runfiles, its own or those it was started in, over the tests' fake driver.
set -euo pipefail
if [[ -d "$0.runfiles/dws" ]]; then cd "$0.runfiles/dws"; fi
# One device of 80 GB: the sender keeps a copy of its snapshot there.
export LD_LIBRARY_PATH="$PWD/tests/fakes/cuda/lib" DWS_FAKE_CUDA_DEVICES=1 DWS_FAKE_CUDA_MEMORY=$((80 << 30))
exec tools/bench/gpu_model "$@"
