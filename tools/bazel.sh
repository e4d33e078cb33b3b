#!/bin/bash
# Runs Bazel on this workspace the same way for everybody: tools/bazel.sh build //...
#
#   DWS_BAZEL_ROOT  where Bazel keeps its output; default: the user's cache folder, or one under
#                   $TMPDIR when there is no writable home
#   BAZEL_FLAGS     more flags, put after the command: BAZEL_FLAGS='--jobs=1 --config=asan'
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh" "${1:-}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output_root() {
  local cache="${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}"
  if [[ -n "$cache" ]] && mkdir -p "$cache/dws-bazel" 2>/dev/null && [[ -w "$cache/dws-bazel" ]]; then
    echo "$cache/dws-bazel"
    return
  fi
  local fallback
  fallback="${TMPDIR:-/tmp}/dws-bazel-$(id -u)"
  mkdir -m 700 "$fallback" 2>/dev/null || true
  # Otherwise Bazel would run a program that somebody else put there.
  if [[ ! -O "$fallback" ]]; then
    echo "bazel.sh: $fallback belongs to somebody else: set DWS_BAZEL_ROOT" >&2
    return 1
  fi
  echo "$fallback"
}

root="${DWS_BAZEL_ROOT:-}"
if [[ -z "$root" ]]; then root="$(output_root)"; fi
command="${1:?usage: tools/bazel.sh COMMAND [ARGUMENT...]}"
shift
export HOME="${HOME:-$root}" USER="${USER:-$(id -un)}"
read -r -a flags <<<"${BAZEL_FLAGS:-}"
case "$command" in  # the others do not know the flags of a build
  build | test | run | coverage) ;;
  *) flags=() ;;
esac
exec bazel --output_user_root="$root" "$command" "${flags[@]}" "$@"
