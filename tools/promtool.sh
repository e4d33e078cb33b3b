#!/bin/bash
# promtool, Prometheus' checker of metrics, rules and configuration: the one on the PATH, or one of its
# own in ~/.cache/dws.
#
#   tools/promtool.sh --fetch     gets it, if there is none, out of Debian's package `prometheus`: that
#                                 package is not installed, because it would start a server
#   tools/promtool.sh --path      prints where it is; status 1 when there is none
#   tools/promtool.sh ARGUMENT... runs it
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh" "${1:-}"

cached="${XDG_CACHE_HOME:-$HOME/.cache}/dws/promtool"

find_promtool() {
  if command -v promtool; then return; fi
  if [[ -x "$cached" ]]; then
    echo "$cached"
  else
    return 1
  fi
}

fetch() {
  find_promtool >/dev/null && return
  local folder
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' RETURN
  chmod 755 "$folder"
  if ! (cd "$folder" && apt-get -qq download prometheus) >"$folder/log" 2>&1; then
    cat "$folder/log" >&2
    echo "promtool.sh: apt could not download the package prometheus (above)" >&2
    return 1
  fi
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" ./usr/bin/promtool
  mkdir -p "$(dirname "$cached")"
  mv "$folder/usr/bin/promtool" "$cached.$$"
  mv "$cached.$$" "$cached"
}

case "${1:-}" in
  --fetch) fetch ;;
  --path) find_promtool ;;
  *)
    path="$(find_promtool)" || {
      echo "promtool.sh: promtool is not installed; run tools/promtool.sh --fetch" >&2
      exit 1
    }
    exec "$path" "$@"
    ;;
esac
