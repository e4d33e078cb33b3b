#!/bin/bash
# The libraries inside the static programs and their licences: licenses.sh FOLDER
# Run by tools/package.sh, from the top of the tree.
set -euo pipefail
folder="$1"

linked=(
  libabsl-dev libc-ares-dev libcli11-dev libevent-dev libexpat1-dev libfabric-dev libfmt-dev libgrpc-dev libgrpc++-dev
  libprotobuf-dev libre2-dev libspdlog-dev libssl-dev libstdc++-12-dev libtomlplusplus-dev
  libxxhash-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev zlib1g-dev
)
mkdir -p "$folder"
for package in "${linked[@]}"; do
  cp -L "/usr/share/doc/$package/copyright" "$folder/$package"
done
cp deploy/debian/copyright "$folder/dws"
dpkg-query -W "${linked[@]}" >"$folder/VERSIONS"
