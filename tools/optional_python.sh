# shellcheck shell=bash disable=SC2034  # sets variables of the script that sources it
# Sourced by the checks that need packages which Debian does not have: which Python has them, and the programs that
# run beside it.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

# require_python PYTHON WHAT VARIABLE TEST: sets $python to the absolute path of PYTHON. Ends the script with a message:
# with status 0 if PYTHON is empty, for the check is skipped; with status 1 if it is not there or `PYTHON -c TEST` fails,
# for it was asked for.
require_python() {
  local named="$1" what="$2" variable="$3" test="$4"
  if [[ -z "$named" ]]; then
    echo "skipped: no Python with $what is named (--python or $variable)"
    exit 0
  fi
  if ! python="$(realpath -se "$(command -v "$named")" 2>/dev/null)"; then
    echo "$named (--python or $variable): there is no such Python; expected one with $what" >&2
    exit 1
  fi
  if ! "$python" -c "$test"; then
    echo "$python (--python or $variable) has no $what that works: see the error above" >&2
    exit 1
  fi
}

# absolute_python PYTHON: prints its path, which need not be there; a name without a folder is looked up in PATH.
absolute_python() {
  realpath -sm "$(command -v "$1" || echo "$1")"
}

# build_beside TARGET...: builds them and sets $binaries to Bazel's output folder. LD_LIBRARY_PATH and PYTHONPATH are the
# caller's, for the named Python: Bazel runs without them.
build_beside() {
  env -u LD_LIBRARY_PATH -u PYTHONPATH tools/bazel.sh build --ui_event_filters=-info,-stdout,-stderr --noshow_progress "$@"
  binaries="$(env -u LD_LIBRARY_PATH -u PYTHONPATH tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
}
