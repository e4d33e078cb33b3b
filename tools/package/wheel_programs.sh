#!/bin/bash
# Installs the wheel in empty environments and runs `python -m dws.demo` there: wheel_programs.sh WHEEL WORK
# Run by tools/wheel_check.sh, from the top of the tree. WORK is a folder that others may enter. A line for each environment:
# ok, skipped and why, or FAILED and what was printed; the last line counts them.
#
# As root, programs run as user 65534, except with a Python that is in a folder of root's alone. Nothing is written outside
# of WORK, and nothing is installed on this machine.
set -euo pipefail
wheel="$1" work="$2"
passed=0 failed=0 skipped=0
pip_options=(-q --disable-pip-version-check)

nobody=()
if [[ $(id -u) -eq 0 ]]; then
  nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
fi

ok() { passed=$((passed + 1)) && echo "ok: $*"; }
skip() { skipped=$((skipped + 1)) && echo "skipped: $*"; }
fail() {
  failed=$((failed + 1))
  cat "$work/log"
  echo "FAILED: $*"
}

# The demo and the three programs in an environment of an ordinary user: demo WHAT PYTHON BIN VARIABLE...
demo() {
  local what="$1" python="$2" bin="$3" program as_user=("${nobody[@]}")
  # By a shell: setpriv itself still has root's capabilities when it opens a program.
  # shellcheck disable=SC2016  # of the inner shell
  if ! "${nobody[@]}" /bin/sh -c 'exec "$0" -c ""' "$python" 2>"$work/log"; then
    as_user=()
    what+=", as $(id -un)"
  fi
  local environment=(env -i HOME="$work/home" TMPDIR="$work/tmp" PATH=/usr/bin:/bin "${@:4}")
  for program in dws-sender dws-receiver dwsctl; do
    if ! "${as_user[@]}" "${environment[@]}" "$bin/$program" --version >"$work/log" 2>&1; then
      fail "$what: $bin/$program --version"
      return
    fi
  done
  if ! (cd / && "${as_user[@]}" "${environment[@]}" timeout 100 "$python" -m dws.demo) >"$work/log" 2>&1; then
    fail "$what: python -m dws.demo"
    return
  fi
  ok "$what: $(tail -n 1 "$work/log"), $(grep -c '^ok ' "$work/log") claims"
}

# In a venv of that Python, with pip from its own bundle: in_venv PYTHON
in_venv() {
  local version environment
  version="$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
  environment="$work/venv-$version"
  if ! "$1" -m venv "$environment" >"$work/log" 2>&1; then
    skip "Python $version: it cannot make a venv ($(tail -n 1 "$work/log"))"
    return
  fi
  if ! "$environment/bin/pip" install "${pip_options[@]}" "$wheel" >"$work/log" 2>&1; then
    skip "Python $version: pip could not install the wheel ($(tail -n 1 "$work/log"))"
    return
  fi
  demo "Python $version, a venv" "$environment/bin/python" "$environment/bin"
}

# pip install --target and --user, by a venv's pip and with what the venv has fetched: in_folders PYTHON_OF_VENV
in_folders() {
  local python="$1" target="$work/target" home="$work/home"
  if "$python" -m pip install "${pip_options[@]}" --target "$target" "$wheel" >"$work/log" 2>&1; then
    demo "pip install --target" "$python" "$target/bin" PYTHONPATH="$target"
  else
    skip "pip install --target: $(tail -n 1 "$work/log")"
  fi
  if HOME="$home" PYTHONUSERBASE="$home/.local" /usr/bin/python3 -m pip install "${pip_options[@]}" --user --break-system-packages \
    --ignore-installed "$wheel" >"$work/log" 2>&1; then
    demo "pip install --user" /usr/bin/python3 "$home/.local/bin"
  else
    skip "pip install --user: $(tail -n 1 "$work/log")"
  fi
}

# A Debian with Python and nothing else, made by debootstrap: in_debian CODENAME PYTHON_VERSION
in_debian() {
  local root="$work/$1" mirror wheels="$work/wheels-$2"
  if [[ $(id -u) -ne 0 ]] || ! command -v debootstrap >/dev/null; then
    skip "Debian $1: needs root and debootstrap"
    return
  fi
  # shellcheck disable=SC2016  # apt's own variables
  mirror="$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(LABEL)' 'Created-By: Packages' |
    awk '$2 == "bookworm" && $3 == "Debian" { print $1; exit }')"
  if ! timeout 900 debootstrap --variant=minbase --include=python3,python3-pip,python3-venv "$1" "$root" "$mirror" \
    >"$work/log" 2>&1; then
    skip "Debian $1: debootstrap could not make it ($(tail -n 1 "$work/log"))"
    return
  fi
  # Fetched here, because the root has no network settings.
  if ! /usr/bin/python3 -m pip download "${pip_options[@]}" --only-binary=:all: --python-version "$2" --dest "$wheels" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_35_x86_64 "$wheel" >"$work/log" 2>&1; then
    skip "Debian $1: pip could not fetch what the wheel needs ($(tail -n 1 "$work/log"))"
    return
  fi
  mv "$wheels" "$root/wheels"
  # shellcheck disable=SC2016  # of the inner shell
  if timeout 600 unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && exec chroot "$1" /bin/bash -euc "
      useradd --create-home user
      exec setpriv --reuid=user --regid=user --clear-groups env -i HOME=/home/user PATH=/usr/bin:/bin /bin/bash -euc \"
        cd && python3 -m venv v && v/bin/pip install --no-index --find-links /wheels delta-weight-sync
        v/bin/dwsctl --version && v/bin/python -m dws.demo\""' in_debian "$root" >"$work/log" 2>&1; then
    ok "Debian $1, Python $2, an ordinary user: $(tail -n 1 "$work/log")"
  else
    fail "Debian $1: python -m dws.demo"
  fi
}

audit() {
  local environment="$work/auditwheel"
  /usr/bin/python3 -m venv "$environment"
  if ! "$environment/bin/pip" install "${pip_options[@]}" auditwheel >"$work/log" 2>&1; then
    skip "auditwheel: pip could not install it ($(tail -n 1 "$work/log"))"
    return
  fi
  "$environment/bin/auditwheel" show "$wheel" >"$work/log" 2>&1 || true
  if tr '\n' ' ' <"$work/log" | grep -qE 'is consistent with the following platform tag: +"manylinux_2_(2[0-9]|3[0-5])_x86_64"'; then
    ok "auditwheel: $(tr '\n' ' ' <"$work/log" | grep -oE 'manylinux_2_[0-9]+_x86_64"' | head -n 1 | tr -d '"')"
  else
    fail "auditwheel show"
  fi
}

install -d -m 1777 "$work/tmp" "$work/home"
for python in python3.10 python3.11 python3.12 python3.13 python3.14; do
  found=''
  for candidate in "$(command -v "$python" || true)" "$HOME/.pyenv/versions/${python#python}".*/bin/"$python"; do
    # The shims of pyenv are there for Pythons that are not.
    if [[ -z "$found" ]] && "$candidate" -c '' 2>/dev/null; then found="$candidate"; fi
  done
  if [[ -n "$found" ]]; then in_venv "$found"; else skip "$python: not found on PATH nor below ~/.pyenv"; fi
done
newest="$(compgen -G "$work/venv-*/bin/python" | sort -V | tail -n 1 || true)"
if [[ -n "$newest" ]]; then in_folders "$newest"; fi
in_debian bookworm 3.11
in_debian trixie 3.13
audit
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
