#!/bin/bash
# Installs the packages of tools/apt_packages.txt that are missing, with apt, as root or through sudo:
# tools/install.sh prints nothing when all are there.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

list="$(dirname "${BASH_SOURCE[0]}")/apt_packages.txt"
mapfile -t packages < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$list")

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install.sh: no apt here. DWS is built on Debian 12; see tools/apt_packages.txt" \
    "for what it needs." >&2
  exit 1
fi

# dpkg-query fails when it does not know one of the names; that is not an error here.
installed="$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)"
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: missing packages: ${missing[*]}" >&2
    echo "install.sh: not root, and no sudo: ask an administrator to install them." >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${#missing[@]} packages: ${missing[*]}"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1
}
install_missing() { apt --no-install-recommends install "${missing[@]}"; }

# A fresh machine has no package lists and an old one has stale ones: then the first attempt fails at once.
if ! install_missing && ! { apt update && install_missing; }; then
  cat "$log" >&2
  echo "install.sh: apt could not install ${missing[*]} (above)" >&2
  exit 1
fi
