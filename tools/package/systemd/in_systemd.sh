#!/bin/bash
# The part of tools/package_test.sh that runs inside a Debian booted by systemd: /packages has what it needs, and apt
# has the other packages in its cache, because there is no network here.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

find / -xdev \( -path /proc -o -path /var/cache -o -path /packages -o -path /tmp \) -prune -o -print |
  LC_ALL=C sort >/packages/before
apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install \
  /packages/dist/dws_*_amd64.deb /packages/dist/python3-dws_*_all.deb >/tmp/install.log 2>&1 ||
  { cat /tmp/install.log >&2; echo "in_systemd.sh: apt does not install the packages" >&2; exit 1; }
exec /usr/bin/python3 -B /packages/systemd/checks.py "$@"
