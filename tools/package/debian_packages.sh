#!/bin/bash
# dws_VERSION_amd64.deb and python3-dws_VERSION_all.deb: debian_packages.sh FOLDER
# Run by tools/package.sh, from the top of the tree, with Debian's own tools for dependencies and
# control files.
set -euo pipefail
out="$1"
work="${DWS_PACKAGE_WORK:?}" version="${DWS_PACKAGE_VERSION:?}"

source_folder="$work/source"
mkdir -p "$source_folder/debian"
cp deploy/debian/control deploy/debian/changelog "$source_folder/debian"

pack() {  # PACKAGE ARCHITECTURE
  local root="$work/$1" script
  mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
  gzip -n -9 <deploy/debian/changelog >"$root/usr/share/doc/$1/changelog.gz"
  install -m 644 deploy/debian/copyright "$root/usr/share/doc/$1/copyright"
  (cd "$source_folder" && dpkg-gencontrol -p"$1" -P"$root" -Tdebian/"$1".substvars -fdebian/files)
  (cd "$root" && find etc -type f -printf '/%p\n' 2>/dev/null | LC_ALL=C sort >DEBIAN/conffiles) || true
  if [[ ! -s "$root/DEBIAN/conffiles" ]]; then rm "$root/DEBIAN/conffiles"; fi
  (cd "$root" && find . -path ./DEBIAN -prune -o -path ./etc -prune -o -type f -printf '%P\0' |
    LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  for script in postinst prerm postrm; do
    if [[ -f "deploy/debian/$1.$script" ]]; then
      install -m 755 "deploy/debian/$1.$script" "$root/DEBIAN/$script"
    fi
  done
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$root" "$out/$1_${version}_$2.deb"
}

cp -r "$work/shared" "$work/dws"
cp "$work"/dynamic/* "$work/dws/usr/bin"
(cd "$source_folder" && dpkg-shlibdeps --warnings=0 -Tdebian/dws.substvars \
  "$work"/dws/usr/bin/{dws-sender,dws-receiver,dwsctl})
# The user and the folders are made when it is installed. Containers have no systemd to bring both.
echo 'dws:Depends=systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles' \
  >>"$source_folder/debian/dws.substvars"
pack dws amd64

packages="$work/python3-dws/usr/lib/python3/dist-packages"
mkdir -p "$packages"
cp -r "$work/python/dws" "$packages/dws"
mkdir "$packages/dws-$version.egg-info"
printf 'Metadata-Version: 2.1\nName: dws\nVersion: %s\n' "$version" \
  >"$packages/dws-$version.egg-info/PKG-INFO"
touch "$source_folder/debian/python3-dws.substvars"
pack python3-dws all

if command -v lintian >/dev/null; then
  lintian --fail-on error "$out/dws_${version}_amd64.deb" "$out/python3-dws_${version}_all.deb"
else
  echo "debian_packages.sh: lintian is not installed: the packages were not checked with it" >&2
fi
