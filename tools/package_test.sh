#!/bin/bash
# Installs the packages of tools/package.sh in clean systems and uses them there; as root, on Debian, with
# debootstrap. Not part of every CI run: it downloads a Debian system and takes minutes.
#
#   tools/package_test.sh                 builds the packages, then tests them
#   tools/package_test.sh --dist FOLDER   tests those that are there
#   --base FOLDER                         copies this clean tree instead of making one
#   --part debian|archive|systemd|image   runs this part alone
#
# 1. A clean Debian (debootstrap): apt installs both .deb; sender and receiver run as the units say and
#    with the configuration that came along; trainer and engine use the packaged client; dwsctl, manual
#    pages, completion, modes; the documentation's `package` blocks; removal and purge.
# 2. A tree with nothing but libc: the programs of the archive run in it, over TLS as well.
# 3. The same clean Debian, booted by its systemd in a container (needs systemd-container): the units as they are
#    installed, with a job that runs through all of it: readiness, watchdog, reload, stops, crashes, files, journal,
#    hardening, upgrade, removal. A line for each check, and how many passed (tools/package/systemd).
# 4. The same clean Debian: what deploy/container/Dockerfile runs, then a daemon, its health check and the client as the image's
#    user. Only the container engine is missing (tools/package/image.py).
#
# Everything runs in namespaces of mounts and processes of its own, which end with the script. No systemd runs
# in 1 and 2.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top="$PWD"

dist='' base='' part=all
while [[ $# -gt 0 ]]; do
  case "$1" in
    --dist) dist="$(cd "${2:?--dist FOLDER}" && pwd)"; shift 2 ;;
    --base) base="$(cd "${2:?--base FOLDER}" && pwd)"; shift 2 ;;
    --part) part="${2:?--part debian|archive|systemd|image}"; shift 2 ;;
    *) echo "package_test.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done
if [[ $(id -u) -ne 0 ]]; then
  echo "package_test.sh: must be root: it makes a system of its own with debootstrap and chroot" >&2
  exit 2
fi
if [[ -z "$base" ]] && ! command -v debootstrap >/dev/null; then
  echo "package_test.sh: debootstrap is missing (apt install debootstrap), or give --base" >&2
  exit 2
fi

if [[ ! "$part" =~ ^(all|debian|archive|systemd|image)$ ]]; then
  echo "package_test.sh: --part $part: expected debian, archive, systemd or image" >&2
  exit 2
fi
if [[ "$part" =~ ^(all|systemd)$ ]] && ! command -v systemd-nspawn >/dev/null; then
  echo "package_test.sh: systemd-nspawn is missing (apt install systemd-container), or give another --part" >&2
  exit 2
fi

if [[ -z "$dist" ]]; then
  tools/package.sh
  dist="$top/dist"
fi

work="$(mktemp -d /tmp/dws-package-test.XXXXXX)"
trap 'rm -rf --one-file-system "$work"' EXIT

# The mirror that this machine's Debian uses.
mirror() {
  # shellcheck disable=SC2016  # apt's own variables
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(LABEL)' 'Created-By: Packages' |
    awk '$2 == "bookworm" && $3 == "Debian" { print $1; exit }'
}

# A clean Debian in a folder of $work: clean_tree NAME
clean_tree() {
  if [[ -z "$base" ]]; then
    timeout 900 debootstrap --variant=minbase bookworm "$work/base" "$(mirror)"
    base="$work/base"
  fi
  cp -a --one-file-system "$base" "$work/$1"
}
isolated() { timeout 1200 unshare --mount --pid --fork --kill-child "$@"; }

debian_part() {
  local tree="$work/debian"
  echo "== Debian packages in a clean Debian"
  clean_tree debian
  mkdir -p "$tree/packages/dist"
  cp "$dist"/*.deb "$tree/packages/dist"
  cp tools/package/exercise.py tools/package/in_debian.sh "$tree/packages"
  /usr/bin/python3 tools/package/docs_script.py package >"$tree/packages/docs.sh"
  cp -L /etc/resolv.conf "$tree/etc/resolv.conf" 2>/dev/null || true
  # shellcheck disable=SC2016  # of the inner shell
  isolated bash -c 'mount -t proc proc "$1/proc" && exec chroot "$1" /bin/bash /packages/in_debian.sh' \
    in_debian "$tree"
}

archive_part() {
  echo "== the archive in a tree with libc alone"
  isolated bash tools/package/in_libc_alone.sh "$dist"/dws-*-linux-x86_64.tar.gz "$work/alone"
}

systemd_part() {
  echo "== Debian packages under a booted systemd"
  clean_tree systemd
  tools/package/systemd/tree.sh "$work/systemd" "$dist"
  tools/package/systemd/boot.sh "$work/systemd" /packages/systemd/in_systemd.sh
}

image_part() {
  echo "== the images, without a container engine"
  clean_tree image
  isolated /usr/bin/python3 -B -m tools.package.image "$work/image" "$dist"
}

for one in debian archive systemd image; do
  if [[ "$part" == all || "$part" == "$one" ]]; then "${one}_part"; fi
done
echo "package_test.sh: passed"
