#!/bin/bash
# dws-VERSION-linux-x86_64.tar.gz: tarball.sh FOLDER
# Run by tools/package.sh, from the top of the tree.
set -euo pipefail
out="$1"
work="${DWS_PACKAGE_WORK:?}" version="${DWS_PACKAGE_VERSION:?}" glibc="${DWS_PACKAGE_GLIBC:?}"
name="dws-$version-linux-x86_64"
root="$work/$name"

mkdir -p "$root/bin"
cp "$work"/static/* "$work"/shared/usr/bin/* "$root/bin"
cp -r "$work/shared/etc" "$work/shared/usr/share" "$root"
mkdir -p "$root/lib"
cp -r "$work"/shared/usr/lib/* "$root/lib"
# The path of the programs that an administrator's unit file names.
sed -i 's,/usr/bin/dws,/usr/local/bin/dws,' "$root"/lib/systemd/system/*.service
cp -r "$work/python" "$root/python"
sed -e "s/@VERSION@/$version/g" -e "s/@GLIBC@/$glibc/g" deploy/tarball/README.md >"$root/README.md"

cp -r "$work/licenses" "$root"
chmod -R u=rwX,go=rX "$root"

tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --format=gnu -c "$name" | gzip -n -9 >"$out/$name.tar.gz"
echo "$out/$name.tar.gz: programs of glibc $glibc or newer"
