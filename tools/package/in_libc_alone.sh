#!/bin/bash
# The part of tools/package_test.sh about the portable archive: in_libc_alone.sh ARCHIVE FOLDER
# Puts the archive into a tree that has libc, libm and the loader, and nothing else, and runs it there.
set -euo pipefail
archive="$1" tree="$2"

fail() {
  tail -n 20 "$tree"/tmp/*.log >&2 || true
  echo "in_libc_alone.sh: FAILED: $*" >&2
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

mkdir -p "$tree"/{proc,lib64,lib/x86_64-linux-gnu,dev,etc,tmp,var/lib/dws}
# The sockets have one path on both sides, as with a volume between two containers.
sockets="$tree.run"
mkdir -p "$sockets" "$tree$sockets"
mount --bind "$sockets" "$tree$sockets"
cp -L /lib64/ld-linux-x86-64.so.2 "$tree/lib64"
cp -L /lib/x86_64-linux-gnu/lib{c,m}.so.6 "$tree/lib/x86_64-linux-gnu"
touch "$tree/dev/null" "$tree/dev/urandom"
mount -t proc proc "$tree/proc"
mount --bind /dev/null "$tree/dev/null"
mount --bind /dev/urandom "$tree/dev/urandom"
printf '127.0.0.1 localhost sender.test\n' >"$tree/etc/hosts"
printf 'root:x:0:0:root:/:/none\n' >"$tree/etc/passwd"
tar -C "$tree" --strip-components=1 -xzf "$archive"
for program in dws-sender dws-receiver dwsctl; do
  chroot "$tree" "/bin/$program" --version >/dev/null || fail "$program does not start with libc alone"
done
ok "the programs start with libc alone"

# Certificates of its own CA: TLS is tested with the libraries that are linked in.
tls="$tree/tls"
mkdir "$tls"
certificate() {  # NAME SUBJECT-ALTERNATIVE-NAMES
  openssl req -newkey rsa:2048 -nodes -keyout "$tls/$1.key" -out "$tls/$1.csr" -subj "/CN=$1" 2>/dev/null
  openssl x509 -req -in "$tls/$1.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -days 2 -CAcreateserial \
    -out "$tls/$1.pem" -extfile <(echo "subjectAltName=$2") 2>/dev/null
}
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$tls/ca.key" -out "$tls/ca.pem" -days 2 \
  -subj /CN=test-ca -addext basicConstraints=critical,CA:TRUE 2>/dev/null
certificate sender 'URI:dws://job/publish/0,DNS:sender.test'
certificate receiver 'URI:dws://job/receive/rollout-0,DNS:localhost'
certificate operator 'URI:dws://job/operate/test'
tls_flags() { echo "--tls-ca=/tls/ca.pem --tls-cert=/tls/$1.pem --tls-key=/tls/$1.key"; }

pids=()
stop() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
}
trap stop EXIT
# The receiver finds the sender by its name.
read -r -a flags <<<"$(tls_flags sender)"
chroot "$tree" /bin/dws-sender --job-id=job --socket="$sockets"/sender.sock --state-dir=/var/lib/dws/s \
  --listen=127.0.0.1:17700 --http=127.0.0.1:17701 "${flags[@]}" >"$tree/tmp/sender.log" 2>&1 &
pids+=($!)
read -r -a flags <<<"$(tls_flags receiver)"
chroot "$tree" /bin/dws-receiver --job-id=job --receiver-id=rollout-0 --sender=sender.test:17700 \
  --socket="$sockets"/receiver.sock --state-dir=/var/lib/dws/r --listen=127.0.0.1:17710 \
  --http=127.0.0.1:17711 "${flags[@]}" >"$tree/tmp/receiver.log" 2>&1 &
pids+=($!)
trap 'fail "line $LINENO"' ERR
until_true 20 test -S "$sockets/sender.sock" -a -S "$sockets/receiver.sock"

# The archive's client on the machine's Python: only sockets are shared.
PYTHONPATH="$tree/python" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$(dirname "$0")/exercise.py" \
  --sender-socket="$sockets/sender.sock" --receiver-socket="$sockets/receiver.sock" \
  --sender-http=127.0.0.1:17701 --receiver-http=127.0.0.1:17711 --admin=localhost:17710 --job=job \
  --tls="$tls/ca.pem,$tls/operator.pem,$tls/operator.key"
read -r -a flags <<<"$(tls_flags operator)"
chroot "$tree" /bin/dwsctl status --address=localhost:17710 "${flags[@]}" >/dev/null || [[ $? -eq 1 ]]
! chroot "$tree" /bin/dwsctl status --address=localhost:17710 >/dev/null 2>&1 ||
  fail "an operator without a certificate was let in"
ok "weights over TLS, names, health, reflection and dwsctl, with libc alone"
