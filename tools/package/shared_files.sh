#!/bin/bash
# Installs what both kinds of packages have beside the daemons and dwsctl, into a folder laid out like /: shared_files.sh FOLDER
# Run by tools/package.sh, from the top of the tree.
set -euo pipefail
root="$1"
work="${DWS_PACKAGE_WORK:?}" version="${DWS_PACKAGE_VERSION:?}"

put() {  # FOLDER FILE...
  mkdir -p "$root/$1"
  install -m 644 "${@:2}" "$root/$1"
}
put_as() {  # PATH FILE
  install -D -m 644 "$2" "$root/$1"
}

put usr/lib/systemd/system deploy/systemd/*.service
put_as usr/lib/sysusers.d/dws.conf deploy/systemd/dws.sysusers.conf
put_as usr/lib/tmpfiles.d/dws.conf deploy/systemd/dws.tmpfiles.conf
# The installed configuration is the simplest example; the others are installed beside it.
put etc/dws deploy/config/single-host/*.toml
for example in deploy/config/*/; do
  put "usr/share/doc/dws/examples/$(basename "$example")" "$example"*.toml
done
install -D -m 755 deploy/tls/certificates.sh "$root/usr/bin/dws-certificates"
put usr/share/dws/prometheus deploy/prometheus/*.yml
put usr/share/dws/grafana deploy/grafana/*.json
put usr/share/dws/nginx deploy/nginx/*.conf
put usr/share/doc/dws README.md docs/*.md docs/*.svg deploy/SECURITY.md
put usr/share/doc/dws/quickstart docs/quickstart/*.md
for example in clients/examples/*.py clients/examples/*.sh; do
  put_as "usr/share/doc/dws/examples/$(basename "$example")" "$example"
done

mkdir -p "$root/usr/share/bash-completion/completions"
"$work/static/dwsctl" completion bash >"$root/usr/share/bash-completion/completions/dwsctl"
chmod 644 "$root/usr/share/bash-completion/completions/dwsctl"

date="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)"
page() {  # SECTION PROGRAM
  mkdir -p "$root/usr/share/man/man$1"
  /usr/bin/python3 tools/package/man_page.py "$1" "$version" "$date" "$2" |
    gzip -n -9 >"$root/usr/share/man/man$1/${2##*/}.$1.gz"
}
page 1 "$work/static/dws-sender"
page 1 "$work/static/dws-receiver"
page 1 "$work/static/dwsctl"
page 1 "$root/usr/bin/dws-certificates"
