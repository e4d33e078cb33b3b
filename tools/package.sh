#!/bin/bash
# Makes the release packages, in dist/ or the folder that is named: tools/package.sh [--wheel] [--out FOLDER]
#
#   dws_VERSION_amd64.deb             daemons, dwsctl, units, configuration; Debian 12's libraries
#   python3-dws_VERSION_all.deb       the Python client
#   delta_weight_sync-VERSION-py3-none-manylinux_2_35_x86_64.whl
#                                     daemons, dwsctl and the client for pip, with the entry points of vLLM and SGLang
#   dws-VERSION-linux-x86_64.tar.gz   the same for any other system: programs that need libc and libm
#
#   --wheel   only the wheel
#
# The programs of the wheel and the archive run with glibc 2.35 or newer, which is checked. The client alone, for
# containers whose daemons run elsewhere, is the folder python of the archive.
#
# The .deb links Debian's libraries dynamically, so that a fix in one of them (OpenSSL) reaches the
# daemons through apt; the others carry them inside the programs.
#
# Same commit and same Debian packages: same bytes. The date of everything is that of the commit, or
# SOURCE_DATE_EPOCH, or, outside a repository, that of deploy/debian/changelog. BAZEL_FLAGS as for
# tools/bazel.sh.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

out=dist wheel_only=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    --wheel) wheel_only=yes; shift ;;
    --out) out="${2:?--out FOLDER}"; shift 2 ;;
    *) echo "package.sh: $1: unknown argument; see --help" >&2; exit 2 ;;
  esac
done

tools/install.sh
tools/static_archives.sh

version="$(sed -n 's/.*kBuildVersion = "\(.*\)".*/\1/p' common/service/build_version.h)"
changelog_version="$(dpkg-parsechangelog -l deploy/debian/changelog -S Version)"
if [[ "$version" != "$changelog_version" ]]; then
  echo "package.sh: build_version.h says $version, deploy/debian/changelog $changelog_version" >&2
  exit 1
fi

commit=unknown
date="$(dpkg-parsechangelog -l deploy/debian/changelog -S Timestamp)"
if [[ -e .git ]]; then
  commit="$(git rev-parse HEAD)"
  date="$(git log -1 --format=%ct)"
  if [[ -n "$(git status --porcelain)" ]]; then commit+=-modified; fi
fi
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$date}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The three programs, stripped, into a folder: build FOLDER FLAG...
build() {
  local folder="$1" binaries program
  shift
  tools/bazel.sh build --config=opt "$@" --embed_label="$commit" \
    //sender_daemon:dws-sender //receiver_daemon:dws-receiver //tools/dwsctl //clients/python:wheel
  binaries="$(tools/bazel.sh info --noshow_progress --config=opt "$@" bazel-bin)"
  mkdir -p "$folder"
  for program in sender_daemon/dws-sender receiver_daemon/dws-receiver tools/dwsctl/dwsctl; do
    strip --strip-unneeded --remove-section=.comment --remove-section=.note \
      -o "$folder/${program##*/}" "$binaries/$program"
    chmod 755 "$folder/${program##*/}"
  done
  install -m 644 "$binaries/clients/python/dws.whl" "$work/dws.whl"
  rm -rf "$work/python"
  /usr/bin/python3 -m zipfile -e "$work/dws.whl" "$work/python"
  rm -r "$work/python"/delta_weight_sync-*.dist-info
}

build "$work/static" --config=static
glibc="$(/usr/bin/python3 tools/package/elf_needs.py 2.35 "$work"/static/*)"
tools/package/licenses.sh "$work/licenses"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
/usr/bin/python3 tools/package/platform_wheel.py "$work/dws.whl" manylinux_2_35_x86_64 \
  "$work/static" "$work/licenses" "$out"
if [[ "$wheel_only" == yes ]]; then exit 0; fi

build "$work/dynamic"
export DWS_PACKAGE_WORK="$work" DWS_PACKAGE_VERSION="$version" DWS_PACKAGE_GLIBC="$glibc"
tools/package/shared_files.sh "$work/shared"
tools/package/debian_packages.sh "$out"
tools/package/tarball.sh "$out"
