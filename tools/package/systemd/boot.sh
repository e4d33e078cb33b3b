#!/bin/bash
# Boots a Debian tree with systemd as its process 1 and runs a command in it: boot.sh TREE COMMAND...
#
# Run by tools/package_test.sh, as root. The container has a network of its own with loopback alone, and a
# cgroup of its own. It ends with this script, whatever the command did. The exit status is the command's.
set -euo pipefail
tree="$1"
shift

BOOT_SECONDS=120 COMMAND_SECONDS=1800
name="dws-package-test-$$"
flags=(--register=no --quiet --boot --directory="$tree" --hostname=dws-test --private-network --console=pipe)
# A container may not do everything that a host may: DevicePolicy needs BPF, KeyringMode the key
# calls, and the probe reads the clock's state.
flags+=('--capability=CAP_BPF,CAP_NET_ADMIN' --system-call-filter='bpf clock_adjtime @keyring')
# Debian's default, whatever hierarchy this machine has.
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1

cgroups=()
if [[ ! -d /run/systemd/system ]]; then
  # Nobody here gives the container a scope, so it gets a cgroup in its present place.
  flags+=(--keep-unit)
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    if [[ -e "$hierarchy/cgroup.procs" ]] && mkdir "$hierarchy/$name"; then cgroups+=("$hierarchy/$name"); fi
  done
fi

container='' leader=''
stop() {
  if [[ -n "$container" ]]; then
    kill -TERM "$container" 2>/dev/null || true  # an orderly shutdown
    for _ in {1..300}; do
      kill -0 "$container" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$container" "${leader:-$container}" 2>/dev/null || true
    wait "$container" 2>/dev/null || true
  fi
  local cgroup
  for cgroup in "${cgroups[@]}"; do
    find "$cgroup" -depth -type d -exec rmdir {} + || true
  done
}
trap stop EXIT

(
  for cgroup in "${cgroups[@]}"; do echo "$BASHPID" >"$cgroup/cgroup.procs"; done
  exec systemd-nspawn "${flags[@]}"
) </dev/null >"$tree.console" 2>&1 &
container=$!

inside() { nsenter --target "$leader" --all -- "$@"; }
booted() {
  leader="$(pgrep --parent "$container" --oldest)" || return
  [[ "$(inside systemctl is-system-running 2>/dev/null)" =~ ^(running|degraded)$ ]]
}
end=$((SECONDS + BOOT_SECONDS))
until booted; do
  if [[ $SECONDS -ge $end ]] || ! kill -0 "$container" 2>/dev/null; then
    echo "boot.sh: systemd has not booted in $tree within $BOOT_SECONDS s:" >&2
    tail -n 30 "$tree.console" >&2
    exit 1
  fi
  sleep 0.2
done

timeout "$COMMAND_SECONDS" nsenter --target "$leader" --all -- \
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
