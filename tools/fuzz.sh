#!/bin/bash
# Fuzzes the codec and the formats of others: tools/fuzz.sh [--seconds N] [--keep] [TARGET...]
#
# Builds the targets of tests/fuzz (all, or those named) with clang 14, libFuzzer, ASan and UBSan, and runs
# each for N seconds (60) from its committed corpus. Stops at the first finding and says where the input
# is. A line a target: executions, CPU seconds, coverage.
#
#   --keep              put what new inputs reach into the corpus, minimised (tests/fuzz/corpus)
#   --cpu-seconds N     run until N seconds of CPU time are used, on a busy machine
#   DWS_FUZZ_DIR        where inputs are kept between runs; default: a new folder, removed without a finding
#   DWS_INSTRUCTION_SET portable or avx2: fuzz those kernels
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=60
cpu_seconds=0
keep=no
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift ;;
    --cpu-seconds) cpu_seconds="${2:?--cpu-seconds needs a number}"; shift ;;
    --keep) keep=yes ;;
    -*) echo "fuzz.sh: unknown option $1 (--help has them)" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if [[ ${#targets[@]} -eq 0 ]]; then
  mapfile -t targets < <(basename -a -s .cc tests/fuzz/*_fuzz.cc)
fi
for target in "${targets[@]}"; do
  [[ -f "tests/fuzz/$target.cc" ]] || { echo "fuzz.sh: no target $target in tests/fuzz" >&2; exit 2; }
done
if ! command -v clang-14 >/dev/null || [[ ! -e /usr/lib/llvm-14/lib/clang/14.0.6/include/fuzzer ]]; then
  echo "fuzz.sh: needs clang 14 and its runtime: apt-get install clang-14 libclang-rt-14-dev" >&2
  exit 1
fi

tools/install.sh
tools/bazel.sh build --config=fuzz //tests/fuzz:make_seeds "${targets[@]/#///tests/fuzz:}"
binaries="$(tools/bazel.sh info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz"
work="${DWS_FUZZ_DIR:-$(mktemp -d)}"
mkdir -p "$work"

# No input needs more memory: a decoder that trusts a size in its input fails here.
limits=(-malloc_limit_mb=64 -rss_limit_mb=512 -timeout=20 -max_len=4096 -len_control=0)
export ASAN_OPTIONS=quarantine_size_mb=16:detect_stack_use_after_return=1

# CPU seconds of process $1 so far.
cpu_of() { awk -v hz="$(getconf CLK_TCK)" '{ printf "%d", ($14 + $15) / hz }' "/proc/$1/stat"; }

# Runs one target; its log is in $2.
fuzz() {
  local target="$1" log="$2" home="$work/$1" pid used=0
  mkdir -p "$home/inputs" "$home/seeds" "$home/findings"
  /usr/bin/python3 tests/fuzz/corpus.py unpack "tests/fuzz/corpus/$target.pack" "$home/seeds"
  local wall="$seconds"
  if [[ $cpu_seconds -gt 0 ]]; then wall=$((cpu_seconds * 20)); fi
  "$binaries/$target" "${limits[@]}" -max_total_time="$wall" -print_final_stats=1 \
    -artifact_prefix="$home/findings/" "$home/inputs" "$home/seeds" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    used="$(cpu_of "$pid" 2>/dev/null || echo "$used")"
    if [[ $cpu_seconds -gt 0 && $used -ge $cpu_seconds ]]; then kill -INT "$pid"; break; fi
    sleep 1
  done
  local status=0
  wait "$pid" || status=$?
  # libFuzzer ends with 72 when it is interrupted.
  if [[ -n "$(ls "$home/findings")" || ($status -ne 0 && $status -ne 72) ]]; then
    tail -n 40 "$log"
    echo "$target: a finding: $home/findings (log: $log)"
    echo "run again: $binaries/$target $home/findings/*"
    return 1
  fi
  awk -v target="$target" -v cpu="$used" '
    /^#[0-9]+/ { runs = substr($1, 2); for (i = 2; i < NF; ++i) if ($i == "cov:") cov = $(i + 1); else if ($i == "ft:") ft = $(i + 1) }
    /number_of_executed_units/ { runs = $2 }
    /peak_rss_mb/ { rss = $2 }
    END { printf "%s: %d executions, %d CPU seconds, %d edges, %d features, %s MiB at most, clean\n", target, runs, cpu, cov, ft, rss }
  ' "$log"
}

# The fewest inputs that reach every edge, packed.
keep_corpus() {
  local target="$1" home="$work/$1"
  rm -rf "$home/least"
  mkdir -p "$home/least"
  "$binaries/$target" "${limits[@]}" -merge=1 -use_counters=0 "$home/least" "$home/seeds" "$home/inputs" \
    >"$home/merge.log" 2>&1
  /usr/bin/python3 tests/fuzz/corpus.py pack "$home/least" "tests/fuzz/corpus/$target.pack"
}

"$binaries/make_seeds" "$work/made"
for target in "${targets[@]}"; do
  mkdir -p "$work/$target/seeds"
  if [[ -d "$work/made/$target" ]]; then cp -r "$work/made/$target/." "$work/$target/seeds"; fi
  fuzz "$target" "$work/$target.log"
  if [[ $keep == yes ]]; then keep_corpus "$target"; fi
done
if [[ -z "${DWS_FUZZ_DIR:-}" ]]; then rm -rf "$work"; fi
