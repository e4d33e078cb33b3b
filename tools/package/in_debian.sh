#!/bin/bash
# The part of tools/package_test.sh that runs inside a clean Debian: /packages has what it needs.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
unset TMPDIR HOME
export HOME=/root

fail() {
  tail -n 20 /tmp/sender.log /tmp/receiver.log >&2 2>/dev/null || true
  echo "in_debian.sh: FAILED: $*" >&2
  exit 1
}
ok() { echo "ok: $*"; }
until_true() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  while ! "${@:2}" >/dev/null 2>&1; do
    [[ $SECONDS -lt $end ]] || fail "not within $1 s: ${*:2}"
    sleep 0.1
  done
}
mode() { [[ "$(stat -c '%a %U %G' "$1")" == "$2" ]] || fail "$1 is $(stat -c '%a %U %G' "$1"), not $2"; }

# Services may not be started, as in a container build.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
# A minimal tree leaves manuals out; this test looks at them.
rm -f /etc/dpkg/dpkg.cfg.d/docker /etc/dpkg/dpkg.cfg.d/excludes
apt-get -qq update
apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install man-db >/dev/null
before="$(find / -xdev \( -path /proc -o -path /var -o -path /packages -o -path /root -o -path /tmp \) \
  -prune -o -print | LC_ALL=C sort)"
cd /packages
apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install \
  ./dist/dws_*_amd64.deb ./dist/python3-dws_*_all.deb >/tmp/install.log 2>&1 ||
  { cat /tmp/install.log; fail "apt does not install the packages"; }
ok "apt installs both packages"

echo "-- user, modes, files"
getent passwd dws >/dev/null || fail "no user dws"
getent group dws >/dev/null || fail "no group dws"
for program in /usr/bin/dws-sender /usr/bin/dws-receiver /usr/bin/dwsctl; do
  mode "$program" '755 root root'
  "$program" --version | head -n 1
done
mode /usr/bin/dws-certificates '755 root root'
dws-certificates job --job-id=check --authority=/tmp/ca --out=/tmp/tls --operate=ann
for file in /etc/dws/*.toml; do
  mode "$file" '644 root root'
  dpkg-query -W -f '${Conffiles}' dws | grep -qF "$file" || fail "$file is no conffile"
done
dpkg --verify dws python3-dws
[[ -z "$(find /etc/systemd -name 'dws*')" ]] || fail "something was enabled"
for page in dws-sender.1 dws-receiver.1 dwsctl.1 dws-certificates.1; do
  man --warnings -E UTF-8 -l "/usr/share/man/man${page##*.}/$page.gz" >/tmp/page 2>/tmp/warnings ||
    fail "man cannot show $page"
  [[ ! -s /tmp/warnings ]] || fail "$page: $(cat /tmp/warnings)"
  grep -q -- '--help' /tmp/page || fail "$page tells no options"
done
bash -c 'source /usr/share/bash-completion/completions/dwsctl && complete -p dwsctl' >/dev/null
ok "user, modes, conffiles, manual pages, completion"

echo "-- a pair, as the units start it"
# The command of a unit, with the environment the unit sets.
command_of() {  # UNIT INSTANCE
  local unit="/usr/lib/systemd/system/$1@.service"
  { echo env; sed -n 's/^Environment=//p' "$unit"; sed -n 's/^ExecStart=//p' "$unit"; } |
    sed "s/%i/$2/g; s/%H/$(hostname)/g" | tr '\n' ' '
}
# An array: a function in the background would be a shell of its own, and get the signals.
as_dws=(setpriv --reuid=dws --regid=dws --init-groups --no-new-privs)
mode /run/dws '755 dws dws'
mode /var/lib/dws '750 dws dws'
# The shipped configuration: the receiver dials the sender's unix socket. Only the HTTP ports differ.
read -r -a sender <<<"$(command_of dws-sender 0) --http=127.0.0.1:17701"
read -r -a receiver <<<"$(command_of dws-receiver rollout-0) --http=127.0.0.1:17711"
"${as_dws[@]}" "${sender[@]}" --check-config >/dev/null
"${as_dws[@]}" "${receiver[@]}" --check-config >/dev/null
"${as_dws[@]}" "${sender[@]}" >/tmp/sender.log 2>&1 &
sender_pid=$!
"${as_dws[@]}" "${receiver[@]}" >/tmp/receiver.log 2>&1 &
receiver_pid=$!
trap 'fail "line $LINENO"' ERR
socket_of() { find /run/dws -name "$1*.sock" -type s; }
has_sockets() { [[ -n "$(socket_of sender)" && -n "$(socket_of receiver)" ]]; }
until_true 20 has_sockets
until_true 20 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 17711), 1)'
until_true 20 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 17701), 1)'
# Status 1: it answers, but has no trainer yet.
job="$({ dwsctl status --json --socket="$(socket_of sender)" || true; } | sed -n 's/.*"job_id": *"\([^"]*\)".*/\1/p')"
python3 exercise.py --sender-socket="$(socket_of sender)" --receiver-socket="$(socket_of receiver)" \
  --sender-http=127.0.0.1:17701 --receiver-http=127.0.0.1:17711 --job="$job" \
  --admin="unix:$(socket_of receiver)"
dwsctl status --socket="$(socket_of sender)" >/dev/null || [[ $? -eq 1 ]]  # 1: its trainer has gone
dwsctl verify --socket="$(socket_of sender)" >/dev/null || [[ $? -eq 4 ]]
kill -TERM "$receiver_pid"
wait "$receiver_pid" || fail "the receiver ended with $?"
kill -TERM "$sender_pid"
wait "$sender_pid" || fail "the sender ended with $?"
ok "the pair syncs, and ends in order"

echo "-- the documentation"
sudo() { "$@"; }
set +o pipefail
# shellcheck source=/dev/null
source /packages/docs.sh
set -o pipefail

echo "-- removal and purge"
apt-get -qq -y -o Dpkg::Use-Pty=0 install --reinstall ./dist/dws_*_amd64.deb >/dev/null 2>&1
echo '# an operator was here' >>/etc/dws/sender.toml
apt-get -qq -y -o Dpkg::Use-Pty=0 remove dws python3-dws >/dev/null 2>&1
[[ -f /etc/dws/sender.toml && ! -e /usr/bin/dws-sender ]] || fail "a removal keeps the configuration only"
apt-get -qq -y -o Dpkg::Use-Pty=0 purge dws python3-dws >/dev/null 2>&1
apt-get -qq -y -o Dpkg::Use-Pty=0 autoremove --purge >/dev/null 2>&1
after="$(find / -xdev \( -path /proc -o -path /var -o -path /packages -o -path /root -o -path /tmp \) \
  -prune -o -print | LC_ALL=C sort)"
left="$(comm -13 <(echo "$before") <(echo "$after") | grep -iE 'dws' || true)"
[[ -z "$left" ]] || fail "a purge leaves $left"
[[ ! -e /var/lib/dws && ! -e /run/dws && ! -e /etc/dws ]] || fail "a purge leaves folders"
! dpkg-query -W dws >/dev/null 2>&1 || fail "dpkg still knows dws"
ok "a removal keeps what the operator wrote, a purge leaves nothing but the user"
