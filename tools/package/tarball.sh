#!/bin/bash
# dws-VERSION-linux-x86_64.tar.gz: tarball.sh FOLDER
# Run by tools/package.sh, from the top of the tree. Fails when a program needs more than libc and libm.
set -euo pipefail
out="$1"
work="${DWS_PACKAGE_WORK:?}" version="${DWS_PACKAGE_VERSION:?}"
name="dws-$version-linux-x86_64"
root="$work/$name"

for program in "$work"/static/*; do
  others="$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE 'libc\.so\.6|libm\.so\.6|ld-linux-x86-64\.so\.2' || true)"
  if [[ -n "$others" ]]; then
    echo "tarball.sh: ${program##*/} needs more than libc and libm:" "$others" >&2
    exit 1
  fi
done
glibc="$(readelf --version-info "$work"/static/* | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)"

mkdir -p "$root/bin" "$root/licenses"
cp "$work"/static/* "$work"/shared/usr/bin/* "$root/bin"
cp -r "$work/shared/etc" "$work/shared/usr/share" "$root"
mkdir -p "$root/lib"
cp -r "$work"/shared/usr/lib/* "$root/lib"
# The path of the programs that an administrator's unit file names.
sed -i 's,/usr/bin/dws,/usr/local/bin/dws,' "$root"/lib/systemd/system/*.service
cp -r "$work/python" "$root/python"
sed -e "s/@VERSION@/$version/g" -e "s/@GLIBC@/${glibc#GLIBC_}/g" deploy/tarball/README.md >"$root/README.md"

# The linked libraries and their licences.
linked=(
  libabsl-dev libc-ares-dev libcli11-dev libevent-dev libexpat1-dev libfabric-dev libfmt-dev libgrpc-dev libgrpc++-dev
  libprotobuf-dev libre2-dev libspdlog-dev libssl-dev libstdc++-12-dev libtomlplusplus-dev
  libxxhash-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev zlib1g-dev
)
for package in "${linked[@]}"; do
  cp -L "/usr/share/doc/$package/copyright" "$root/licenses/$package"
done
cp deploy/debian/copyright "$root/licenses/dws"
dpkg-query -W "${linked[@]}" >"$root/licenses/VERSIONS"
chmod -R u=rwX,go=rX "$root"

tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --format=gnu -c "$name" | gzip -n -9 >"$out/$name.tar.gz"
echo "$out/$name.tar.gz: programs of glibc ${glibc#GLIBC_} or newer"
