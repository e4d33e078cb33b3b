#!/bin/bash
# Packs gpu_check with all that it runs: pack.sh BUILT COMMIT OUT.tar.xz
#
# Run it at the top of the tree, or of a test's runfiles. BUILT is the folder of what was built there: bazel-bin, or "."
# in runfiles. The Python client is the wheel, unpacked: BUILD files list its modules, and nothing else does.
#
# The programs are those of any build, with the libraries they are linked to beside them, so nothing is built
# for the archive alone. Only what belongs to one C library and one driver comes from the other machine: its libc has to be
# as new as this one's, or newer.
set -euo pipefail
built="$1" commit="$2" out="$3"
umask 022
of_the_machine='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|cuda|nccl))\.so'

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
pack="$work/gpu_check"
mkdir -p "$pack/bin" "$pack/lib" "$pack/python/tests/integration" "$pack/python/tools/gpu_check/job"

# Stripped first: strip damages what patchelf has moved. DT_RPATH goes before LD_LIBRARY_PATH, in which a machine may
# have another libstdc++; DT_RUNPATH would come after it, and holds for direct needs only.
install_elf() {  # FROM TO RPATH
  strip --strip-unneeded -o "$2" "$1"
  chmod 755 "$2"
  patchelf --force-rpath --set-rpath "$3" "$2"
}
programs=()
for program in tools/gpu_check/gpu_check tests/gpu/gpu_tests sender_daemon/dws-sender \
  receiver_daemon/dws-receiver; do
  programs+=("$built/$program")
  # shellcheck disable=SC2016  # the loader replaces $ORIGIN
  install_elf "$built/$program" "$pack/bin/${program##*/}" '$ORIGIN/../lib'
done
needed="$(ldd "${programs[@]}")"
if grep 'not found' <<<"$needed" >&2; then
  echo "pack.sh: these libraries are missing here" >&2
  exit 1
fi
while read -r name path; do
  [[ "$name" =~ $of_the_machine ]] && continue
  # shellcheck disable=SC2016
  install_elf "$(realpath "$path")" "$pack/lib/$name" '$ORIGIN'
done < <(awk '$2 == "=>" {print $1, $3}' <<<"$needed" | sort -u)

/usr/bin/python3 -m zipfile -e "$built/clients/python/dws.whl" "$pack/python"
install -m 644 tests/integration/cluster.py "$pack/python/tests/integration"
install -m 755 tools/gpu_check/run.sh "$pack"
install -m 644 tools/gpu_check/*.py "$pack/python/tools/gpu_check"
install -m 644 tools/gpu_check/job/*.py "$pack/python/tools/gpu_check/job"
# Regular packages: a `tests` or `tools` that another project has installed would go before folders without them.
for package in tests tests/integration tools tools/gpu_check tools/gpu_check/job; do
  : >"$pack/python/$package/__init__.py"
done
echo "$commit" >"$pack/commit"
tar -C "$work" --owner=0 --group=0 --numeric-owner -c gpu_check | xz -T0 -6 >"$out"
