#!/bin/bash
# Makes what --config=static needs and Debian does not have: the static archive of prometheus-cpp, from
# Debian's own source package of the version installed here: tools/static_archives.sh
#
# The source comes through apt (which checks its signature), from where this machine's packages come
# from: its own list of sources with "deb" read as "deb-src", in a folder of its own; the machine's
# lists stay as they are. Does nothing when the archive is there for the version installed.
#
#   DWS_DEBIAN_SOURCES  folder with prometheus-cpp_VERSION.dsc and the files it names; nothing is
#                       fetched then
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="tools/bazel/debian/static"
archive="$folder/libprometheus-cpp-core.a"
# shellcheck disable=SC2016  # dpkg-query's own variable
version="$(dpkg-query -W -f '${source:Version}' prometheus-cpp-dev)"
if [[ -f "$archive" && "$(cat "$folder/version" 2>/dev/null)" == "$version" ]]; then exit 0; fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The machine's sources, of both formats, as sources of source packages.
own_lists() {
  mkdir -p "$work/parts" "$work/lists/partial"
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f "$file" ]] || continue
    sed -n 's/^deb[[:space:]]/deb-src /p' "$file" >"$work/parts/$(basename "$file" .list).list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f "$file" ]] || continue
    sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/parts/$(basename "$file")"
  done
}

fetch() {
  own_lists
  local options=(
    -qq
    -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root
    -o Acquire::Retries=3 -o Acquire::http::Timeout=30
  )
  # A vendor's list may have no sources; only the package itself matters.
  apt-get "${options[@]}" update >"$work/log" 2>&1 || true
  if ! (cd "$work" && apt-get "${options[@]}" source --download-only "prometheus-cpp=$version") \
    >>"$work/log" 2>&1; then
    cat "$work/log" >&2
    echo "static_archives.sh: apt could not fetch the source of prometheus-cpp $version (above)." \
      "Fetch it elsewhere and name its folder in DWS_DEBIAN_SOURCES." >&2
    return 1
  fi
}

sources="${DWS_DEBIAN_SOURCES:-}"
if [[ -z "$sources" ]]; then
  fetch
  sources="$work"
fi
dsc=("$sources"/prometheus-cpp_*.dsc)
# --no-check: apt has checked the signature; the hashes are checked all the same.
dpkg-source --no-check -x "${dsc[0]}" "$work/source" >/dev/null

objects=()
for file in "$work"/source/core/src/*.cc "$work"/source/core/src/detail/*.cc; do
  object="$work/$(basename "$file").o"
  # The headers are those of the package that everything else is compiled against.
  g++ -std=c++17 -O2 -DNDEBUG -fPIC -ffunction-sections -fdata-sections \
    "-ffile-prefix-map=$work/source=prometheus-cpp" -c "$file" -o "$object"
  objects+=("$object")
done
mkdir -p "$folder"
rm -f "$archive"
ar rcsD "$archive" "${objects[@]}"
cp "$work/source/debian/copyright" "$folder/prometheus-cpp.copyright"
echo "$version" >"$folder/version"
