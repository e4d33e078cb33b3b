#!/bin/bash
# Sourced by each script of tools/ before it does anything: --help prints the comment on top of the script, and ends it.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"              looks at all arguments
#   source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh" "${1:-}"     at the first one: the others are another program's
set -euo pipefail

for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  esac
done
