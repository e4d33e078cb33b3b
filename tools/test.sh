#!/bin/bash
# Builds everything and runs every test: tools/test.sh [--config=asan | --config=tsan | ...]
#
# Installs what is missing first (tools/install.sh). The arguments go to `bazel test`, and so do those
# in BAZEL_FLAGS; a target among them replaces //... . The last line is `N passed, M failed`, counted
# in test cases; the exit status is not 0 when one failed, one did not build, or nothing ran.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh
tools/promtool.sh --fetch || true  # without it the tests that need it are skipped

targets=(//...)
for argument in "$@"; do
  [[ "$argument" == //* ]] && targets=()
done

events="$(mktemp)"
trap 'rm -f "$events"' EXIT
status=0
tools/bazel.sh test --keep_going --test_summary=terse --build_event_json_file="$events" \
  "$@" "${targets[@]}" || status=$?

# Bazel's 3 is "tests failed" and 4 "no tests": the count says so. The others are not about tests.
/usr/bin/python3 tools/count_tests.py --bazel-status="$status" "$events"
