#!/bin/bash
# Tries the wheel with packages that pip fetches; what it cannot fetch is skipped with a message:
#
#   tools/wheel_check.sh [--keep=FOLDER]     runs the client's tests, with the oldest and the newest packages that it takes;
#                                            keeps the two environments for the next run
#   tools/wheel_check.sh --programs[=WHEEL]  runs `python -m dws.demo` from the wheel of tools/package.sh, or from that file:
#                                            in an empty environment of each Python here, by pip install --target and --user,
#                                            and as root in bare trees of Debian 12 and 13; asks auditwheel
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=(engine_suspend_test plugin_step_gate_test digest_test lease/lease_test)
tests_with_torch=(engine_test trainer_test layout_test memory_test declare/declare_test)

work="$(mktemp -d)"
trap 'rm -rf --one-file-system "$work"' EXIT
folder="$work"
case "${1:-}" in
  "") ;;
  --keep=*) folder="$(realpath -m "${1#*=}")" ;;
  --programs | --programs=*)
    wheel="${1#--programs}"
    wheel="${wheel#=}"
    if [[ -z "$wheel" ]]; then
      tools/package.sh --wheel --out "$work"
      wheel="$(compgen -G "$work/*.whl")"
    fi
    chmod 755 "$work"
    tools/package/wheel_programs.sh "$(realpath "$wheel")" "$work"
    exit
    ;;
  *) echo "wheel_check.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
esac

tools/bazel.sh build --ui_event_filters=-info --noshow_progress //clients/python:wheel
binaries="$(tools/bazel.sh info --noshow_progress bazel-bin 2>/dev/null)"
# Copied under the name that pip requires.
version="$(sed -n 's/.*kBuildVersion = "\(.*\)".*/\1/p' common/service/build_version.h)"
wheel="$work/delta_weight_sync-$version-py3-none-any.whl"
cp "$binaries/clients/python/dws.whl" "$wheel"

passed=0 failed=0
try() {  # NAME VENV_OPTION REQUIREMENT...
  local name="$1" environment="$folder/$1" test
  /usr/bin/python3 -m venv "$2" "$environment"
  shift 2
  if ! "$environment/bin/pip" install -q --disable-pip-version-check "$@"; then
    echo "skipped: pip could not install $*"
    return
  fi
  "$environment/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
  local these=("${tests[@]}")
  if "$environment/bin/python" -c 'import torch' 2>/dev/null; then these+=("${tests_with_torch[@]}"); fi
  for test in "${these[@]}"; do
    if PYTHONPATH=. PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 \
      "$environment/bin/python" "tests/clients/python/$test.py" >"$work/log" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      cat "$work/log"
      echo "FAILED: $test with the $name packages"
    fi
  done
  echo "$name: $("$environment/bin/pip" freeze --local --disable-pip-version-check | grep -v '^delta-weight-sync' | paste -sd' ')"
}

# Debian's torch goes with old packages only. tools/real.sh engines runs the new ones with a new torch.
try oldest --system-site-packages "protobuf==3.20.2" "grpcio==1.49.1" "numpy==1.23.5"
try newest --clear protobuf grpcio numpy
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
