#!/bin/bash
# Makes a Debian tree ready for in_systemd.sh: tree.sh TREE DIST. With the network of this machine: systemd, and in
# apt's cache what the packages need; and packages of a later version, for an upgrade.
set -euo pipefail
tree="$1" dist="$2"
cd "$(dirname "${BASH_SOURCE[0]}")"

mkdir -p "$tree/packages/dist" "$tree/packages/upgrade" "$tree/packages/systemd"
cp "$dist"/*.deb "$tree/packages/dist"
cp in_systemd.sh ./*.py "$tree/packages/systemd"
cp -L /etc/resolv.conf "$tree/etc/resolv.conf" 2>/dev/null || true

repacked="$(mktemp -d)"
trap 'rm -rf "$repacked"' EXIT
for package in "$dist"/*.deb; do
  name="$(basename "$package" .deb)"
  dpkg-deb --raw-extract "$package" "$repacked/$name"
  sed -i 's/^Version: .*/&+upgrade/' "$repacked/$name/DEBIAN/control"
  dpkg-deb --root-owner-group -Znone --build "$repacked/$name" "$tree/packages/upgrade/$name.deb" >/dev/null
done

# shellcheck disable=SC2016  # of the inner shell
chroot "$tree" /bin/bash -c '
  set -euo pipefail
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
  apt-get -qq update
  apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install systemd-sysv dbus >/dev/null
  apt-get -qq -y --no-install-recommends --download-only install /packages/dist/*.deb >/dev/null'
