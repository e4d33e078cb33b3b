#!/bin/bash
# dws-certificates: makes and renews the certificates of a job for mutual TLS.
# It runs openssl, 3.0 or newer. Keys are EC P-256, signatures SHA-256, identities as in deploy/SECURITY.md.
# An existing file is replaced only with --force, or by renew. A command that is refused has written nothing.
#
# Usage: dws-certificates COMMAND [OPTION...] [FILE...]
#
# Commands:
#   job        the authority, if there is none yet, and all certificates of a job
#   authority  an authority for one job: ca.pem, which every daemon trusts, and ca.key (0600), which signs and
#              belongs on a machine that is not one of the cluster's
#   issue      one certificate with a new key: OUT/ROLE-NAME with ca.pem, cert.pem and key.pem (0640)
#   renew      signs certificates that end soon again, with the same key, identity and hosts, and replaces each
#              file in one step. Needs only the authority's private key, so the files may be copies
#
# Options:
#   --job-id ID               the daemons' --job-id (job, authority)
#   --authority DIR           the authority's folder: ca.pem and ca.key (job, issue, renew)
#   --out DIR                 folder for the authority, or for the certificates' folders (job, authority, issue)
#   --publish RANK[@HOSTS]    a sender: its trainer rank, or ranks as 0-7; HOSTS with commas between (job)
#   --train RANK[@HOSTS]      the same, with --train-peers: it has both roles (job)
#   --receive ID[@HOSTS]      a receiver: its --receiver-id (job)
#   --operate NAME[@HOSTS]    an operator who gives orders with dwsctl, or Prometheus (job)
#   --role ROLE               publish, train, receive or operate (issue)
#   --name NAME               a trainer rank, a receiver's id, or an operator's name (issue)
#   --host HOST               a DNS name or address that clients dial; loopback is always included (job, issue)
#   --days DAYS               how long it is valid: 90, 825 at most; an authority 3650, 7300 at most
#   --within DAYS             renew what ends within so many days: 30 (renew)
#   --force                   replaces files that exist already (job, authority, issue)
#   --help                    prints this
#
# Examples:
#   dws-certificates job --job-id=my-job --authority=ca --out=tls --publish=0-7@trainer.example \
#       --receive=rollout-0@engine0.example --receive=rollout-1@10.0.0.7 --operate=ann
#   dws-certificates issue --authority=ca --role=receive --name=rollout-2 --host=engine2.example --out=tls
#   dws-certificates renew --authority=ca tls/*/cert.pem
#
# Exit status:
#   0  done
#   1  files, folders or the authority do not allow it
#   2  the command line is wrong
set -euo pipefail
set -o noglob  # a host may begin with *
shopt -s inherit_errexit
export LC_ALL=C  # strings are bytes
umask 077
readonly NAME_BYTES_MAX=256 RANK_MAX=4095 HOSTS_MAX=64 FILE_BYTES_MAX=1048576
readonly LEAF_DAYS=90 LEAF_DAYS_MAX=825 AUTHORITY_DAYS=3650 AUTHORITY_DAYS_MAX=7300 WITHIN_DAYS=30
readonly CLOCK_SKEW_SECONDS=3600  # new certificates are valid so long before now, for clocks that are behind
readonly COMMON_NAME_BYTES_MAX=64  # X.520
work="" unfinished=""
trap '[[ -z "$unfinished$work" ]] || rm -rf -- ${unfinished:+"$unfinished"} ${work:+"$work"}' EXIT
refuse() { printf 'dws-certificates: %s\n' "$*" >&2; exit 1; }
wrong() { printf 'dws-certificates: %s\n' "$*; see --help" >&2; exit 2; }
# Percent-encodes a part of an identity: all bytes but RFC 3986's unreserved characters.
escape() {
  local text="$1" i byte code out=""
  for ((i = 0; i < ${#text}; ++i)); do
    byte="${text:i:1}"
    if [[ "$byte" != [A-Za-z0-9._~-] ]]; then
      printf -v code '%d' "'$byte"
      printf -v byte '%%%02X' "$((code & 255))"
    fi
    out+="$byte"
  done
  printf '%s' "$out"
}
unescape() { printf '%b' "${1//%/\\x}"; }
check_part() {  # OPTION TEXT
  [[ -n "$2" ]] || wrong "$1 is empty: expected 1 to $NAME_BYTES_MAX bytes"
  [[ ${#2} -le $NAME_BYTES_MAX ]] || wrong "$1 has ${#2} bytes, expected at most $NAME_BYTES_MAX"
  [[ "$2" != *[[:cntrl:]]* ]] || wrong "$1 has a control character: expected printable text"
}
is_rank() { [[ "$1" =~ ^(0|[1-9][0-9]{0,3})$ && "$1" -le $RANK_MAX ]]; }
check_days() {  # OPTION LEAST MOST
  [[ "${value[$1]}" =~ ^(0|[1-9][0-9]{0,4})$ && "${value[$1]}" -ge "$2" && "${value[$1]}" -le "$3" ]] ||
    wrong "--$1 is '${value[$1]}', expected $2 to $3 days"
}
is_ipv4() {
  local byte='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
  [[ "$1" =~ ^$byte(\.$byte){3}$ ]]
}
is_ipv6() {
  local text="$1" part parts group='[0-9a-fA-F]{1,4}' groups=0 groups_max=8
  [[ "$text" == *:* ]] || return 1
  if [[ "$text" == *.* ]]; then
    is_ipv4 "${text##*:}" || return 1
    text="${text%:*}:0:0"
  fi
  parts=("$text")
  if [[ "$text" == *::* ]]; then
    parts=("${text%%::*}" "${text#*::}")
    groups_max=7
  fi
  for part in "${parts[@]}"; do
    [[ -z "$part" && ${#parts[@]} -eq 2 || "$part" =~ ^$group(:$group)*$ ]] || return 1
    part="${part//[^:]/}${part:+:}"
    groups=$((groups + ${#part}))
  done
  [[ $groups -le $groups_max && (${#parts[@]} -eq 2 || $groups -eq 8) ]]
}
# A name whose last part is a number would be a mistyped address.
is_dns_name() {
  local label='[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?'
  [[ ${#1} -le 253 && "$1" =~ ^(\*\.)?($label\.)*$label$ && ! "${1##*.}" =~ ^[0-9]+$ ]]
}
is_host() { is_ipv4 "$1" || is_ipv6 "$1" || is_dns_name "$1"; }
check_host() {  # OPTION HOST
  is_host "$2" || wrong "$1: '${2:0:253}' is not a host: expected a DNS name or an IP address"
}
declare -A value=() seen=()
host=() publish=() train=() receive=() operate=() files=()

# Reads the options of a command: parse "KNOWN" "REQUIRED" ARGUMENT...
parse() {
  local known="$1" required="$2" option text days=$LEAF_DAYS days_max=$LEAF_DAYS_MAX
  shift 2
  if [[ "$command" == authority ]]; then days=$AUTHORITY_DAYS days_max=$AUTHORITY_DAYS_MAX; fi
  while [[ $# -gt 0 ]]; do
    option="${1%%=*}"
    option="${option#--}"
    if [[ "$1" != --* ]]; then
      [[ " $known " == *" files "* ]] || wrong "'$1' is not expected here: values are given as --OPTION VALUE"
      files+=("$1")
      shift
      continue
    fi
    [[ "$option" != files && " $known " == *" $option "* ]] || wrong "$command has no option '--$option'"
    if [[ "$option" == force ]]; then
      [[ "$1" == --force ]] || wrong "--force takes no value, found '$1'"
      text=1
    elif [[ "$1" == *=* ]]; then
      text="${1#*=}"
      [[ -n "$text" ]] || wrong "--$option= has no value: expected one after the '='"
    else
      [[ $# -gt 1 ]] || wrong "--$option has no value: expected one behind it"
      text="$2"
      shift
    fi
    shift
    case "$option" in
      host | publish | train | receive | operate)
        local -n list="$option"
        list+=("$text")
        ;;
      *)
        [[ -z "${value[$option]+given}" ]] || wrong "--$option is given twice, expected once"
        value[$option]="$text"
        ;;
    esac
  done
  for option in $required; do
    [[ -n "${value[$option]+given}" ]] || wrong "--$option is missing: $command needs it"
  done
  : "${value[days]:=$days}" "${value[within]:=$WITHIN_DAYS}"
  check_days days 1 "$days_max"
  check_days within 0 $LEAF_DAYS_MAX
  if [[ -n "${value[job-id]+given}" ]]; then check_part --job-id "${value[job-id]}"; fi
}

request_uris=() request_hosts=() request_folders=()

# Adds one certificate: request JOB ROLE NAME HOST...
request() {
  local job="$1" role="$2" name="$3" uri hosts
  shift 3
  check_part "the name of --$role" "$name"
  uri="dws://$(escape "$job")/${role/#train/publish}/$(escape "$name")"
  [[ -z "${seen[$uri]+given}" ]] ||
    wrong "--$role names '$name' twice, expected one certificate for each: name it once, with all its hosts"
  seen[$uri]=1
  if [[ "$role" == train ]]; then uri+=" dws://$(escape "$job")/train/$name"; fi
  [[ $# -le $HOSTS_MAX ]] || wrong "--$role $name: $# hosts, expected at most $HOSTS_MAX"
  hosts=" $* "
  for loopback in localhost 127.0.0.1 ::1; do
    [[ "$hosts" == *" $loopback "* ]] || hosts+="$loopback "
  done
  request_uris+=("$uri")
  request_hosts+=("$hosts")
  request_folders+=("${value[out]}/$role-${uri##*/}")
}

# Adds what one --publish, --train, --receive or --operate asks for: requests ROLE TEXT
requests() {
  local role="$1" text="$2" names="${2%%@*}" one first last hosts=() all=("${2%%@*}")
  if [[ "$text" == *@* ]]; then mapfile -t -d , hosts < <(printf '%s,' "${text#*@}"); fi
  hosts+=("${host[@]}")
  for one in "${hosts[@]}"; do check_host "--$role $text" "$one"; done
  if [[ "$role" == publish || "$role" == train ]]; then
    first="${names%%-*}" last="${names#*-}"
    if ! is_rank "$first" || ! is_rank "$last" || [[ "$first" -gt "$last" ]]; then
      wrong "'$names' is not a trainer rank: expected a number from 0 to $RANK_MAX, or two with '-' between"
    fi
    mapfile -t all < <(seq "$first" "$last")
  fi
  for one in "${all[@]}"; do request "${value[job-id]}" "$role" "$one" "${hosts[@]}"; done
}
check_absent() {
  local path
  for path in "$@"; do
    [[ -n "${value[force]+given}" || (! -e "$path" && ! -L "$path") ]] ||
      refuse "$path exists already, expected no such file: \`dws-certificates renew\` extends a certificate," \
        "--force replaces everything"
  done
}

# Others could read or replace a key in a folder of theirs: check_folder FOLDER [sticky]
# sticky: a folder like /tmp will do, where others can only add their own files.
check_folder() {
  local owner mode
  [[ -e "$1" ]] || return 0  # it will be made
  [[ -d "$1" ]] || refuse "$1 is not a folder, expected one, or none yet: name another one"
  read -r owner mode < <(stat -L -c '%u %a' -- "$1")
  if [[ "$owner" -ne "$EUID" && "$owner" -ne 0 ]]; then
    refuse "a private key is written to $1: it is owned by uid $owner, expected uid $EUID, which runs this;" \
      "nothing is written; chown the folder, name another one, or run this as uid $owner"
  fi
  if (((8#$mode & 8#22) != 0)) && ! { [[ "${2:-}" == sticky ]] && (((8#$mode & 8#1000) != 0)); }; then
    printf -v mode '%04d' "$mode"
    refuse "a private key is written to $1: others can write to it (mode $mode), expected its owner only;" \
      "nothing is written; run \`chmod go-w\` on it, or name another one"
  fi
}
make_folders() {
  if [[ -d "$1" ]]; then return; fi
  make_folders "$(dirname -- "$1")"
  mkdir -m 750 -- "$1" || [[ -d "$1" ]] || refuse "the folder $1 cannot be made: name another one"
}

# Writes a file with its mode, complete and durable before it has its name: write PATH MODE TEXT [replace]
write() {
  local path="$1" folder
  folder="$(dirname -- "$path")"
  unfinished="$path.new-$$"
  printf '%s\n' "$3" | install -m "$2" -- /dev/stdin "$unfinished"
  sync -- "$unfinished"
  if [[ "${4:-}" == replace || -n "${value[force]+given}" ]]; then
    mv -fT -- "$unfinished" "$path"
  else
    mv -nT -- "$unfinished" "$path" || true
    [[ ! -e "$unfinished" ]] || refuse "$path exists already, expected no such file: another program has made it"
  fi
  unfinished=""
  sync -- "$folder"
}
check_readable() {
  [[ -e "$1" ]] || refuse "$1: No such file, expected $2"
  [[ -f "$1" && "$(stat -L -c %s -- "$1")" -le $FILE_BYTES_MAX ]] ||
    refuse "$1: expected a file of at most $FILE_BYTES_MAX bytes, found something else"
  [[ -r "$1" ]] || refuse "$1 cannot be read: run this as its owner"
}
# Runs openssl. If it fails, its last message is the reason that is shown: openssl_for WHAT ARGUMENT...
openssl_for() {
  local what="$1"
  shift
  openssl "$@" 2>"$work/error" || refuse "$what: openssl says: $(tail -n 1 "$work/error")"
}
check_certificate() {  # PATH
  check_readable "$1" "a certificate in PEM"
  openssl_for "$1: expected a certificate in PEM" x509 -inform PEM -in "$1" -noout
}
# Seconds since 1970 at which a certificate ends.
end_of() {
  local line; line="$(openssl x509 -in "$1" -noout -enddate)"
  date -d "${line#notAfter=}" +%s
}
# The subject alternative names, one a line: URI:..., DNS:..., IP Address:...
names_of() {
  { openssl x509 -in "$1" -noout -ext subjectAltName 2>/dev/null || true; } | sed -n '2,$ { s/^ *//; s/, /\n/g; p; }'
}
new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 2>"$work/error"; }

# The extensions of a certificate, in $work/extensions: extensions CONSTRAINTS USAGE EXTENDED-USAGE URIS HOSTS
# All names have been checked: none can end a line or begin another value.
extensions() {
  local uri one kind count=0
  {
    printf '[names]\n'
    for uri in $4; do printf 'URI.%d = %s\n' "$((++count))" "$uri"; done
    for one in $5; do
      kind=DNS
      if is_ipv4 "$one" || is_ipv6 "$one"; then kind=IP; fi
      printf '%s.%d = %s\n' "$kind" "$((++count))" "$one"
    done
    printf '[extensions]\nbasicConstraints = critical,%s\nkeyUsage = critical,%s\n' "$1" "$2"
    if [[ -n "$3" ]]; then printf 'extendedKeyUsage = %s\n' "$3"; fi
    printf '%s\n' 'subjectKeyIdentifier = hash' 'authorityKeyIdentifier = keyid:always' 'subjectAltName = @names'
  } >"$work/extensions"
}
leaf_extensions() {  # URIS HOSTS
  local usage=clientAuth uri
  for uri in $1; do
    if [[ "$uri" != */operate/* ]]; then usage=serverAuth,clientAuth; fi
  done
  extensions CA:FALSE digitalSignature "$usage" "$1" "$2"
}
# The subject: the part after the job of the first identity of several.
subject_of() {
  local title="${1%% dws://*}"
  title="${title:0:COMMON_NAME_BYTES_MAX}"
  printf '/CN=%s' "${title//\//\\/}"
}

# Signs a certificate for a key, and prints it: sign KEY TITLE DAYS SIGNER-OPTION...
sign() {
  local key="$1" subject now days="$3"
  subject="$(subject_of "$2")"
  shift 3
  now="$(date +%s)"
  printf '%s\n' '[ca]' 'default_ca = own' '[own]' "database = $work/index" "new_certs_dir = $work" \
    'rand_serial = yes' 'default_md = sha256' 'policy = any' 'unique_subject = no' '[any]' 'commonName = supplied' \
    >"$work/config"
  : >"$work/index"
  openssl_for "the request" req -new -config /dev/null -key <(printf '%s\n' "$key") -subj "$subject" \
    -out "$work/request"
  openssl_for "the signature" ca -batch -notext -config "$work/config" "$@" -in "$work/request" -subj "$subject" \
    -startdate "$(date -u -d "@$((now - CLOCK_SKEW_SECONDS))" +%Y%m%d%H%M%SZ)" \
    -enddate "$(date -u -d "@$((now + days * 86400))" +%Y%m%d%H%M%SZ)" \
    -extfile "$work/extensions" -extensions extensions -out "$work/signed"
  openssl x509 -in "$work/signed"
}

# Reads and checks the authority in ${value[authority]}; sets `job` to its job, escaped.
read_authority() {
  local folder="${value[authority]}" key name
  [[ -e "$folder/ca.pem" ]] ||
    refuse "$folder has no authority (ca.pem): make one with \`dws-certificates authority --out=$folder\`"
  check_certificate "$folder/ca.pem"
  job=""
  while IFS= read -r name; do
    if [[ "$name" =~ ^URI:dws-job:([A-Za-z0-9._~%-]+)$ ]]; then job="${BASH_REMATCH[1]}"; fi
  done < <(names_of "$folder/ca.pem")
  [[ -n "$job" ]] || refuse "$folder/ca.pem names no job: expected one that \`dws-certificates authority\` made"
  check_readable "$folder/ca.key" "the authority's private key"
  key="$(openssl_for "$folder/ca.key: expected a private key in PEM without a passphrase" \
    pkey -in "$folder/ca.key" -passin pass: -pubout)"
  [[ "$key" == "$(openssl x509 -in "$folder/ca.pem" -noout -pubkey)" ]] ||
    refuse "$folder/ca.key is not the key of $folder/ca.pem: expected both of one authority"
}
check_lifetime() {  # DAYS: of a certificate that the authority signs
  local end; end="$(end_of "${value[authority]}/ca.pem")"
  [[ $(($(date +%s) + $1 * 86400)) -le "$end" ]] ||
    refuse "a certificate of $1 days would outlive its authority, which ends at $(date -u -d "@$end" '+%F %T UTC'):" \
      "give fewer --days, or make a new authority"
}
show() {  # PATH WHAT
  local uris; uris="$(names_of "$1" | sed -n 's/^URI:\(dws:\)/\1/p' | paste -s -d ' ')"
  printf '%s: %s%s, expires in %d days\n' "$1" "$2" "${uris:+: $uris}" "$((($(end_of "$1") - $(date +%s) + 43200) / 86400))"
}

make_authority() {  # FOLDER DAYS
  local key text
  check_absent "$1/ca.pem" "$1/ca.key"
  check_folder "$1"
  job="$(escape "${value[job-id]}")"
  key="$(new_key)"
  extensions CA:TRUE,pathlen:0 keyCertSign,cRLSign "" "dws-job:$job" ""
  text="$(sign "$key" "DWS authority of $job" "$2" -selfsign -keyfile <(printf '%s\n' "$key"))"
  make_folders "$1"
  check_folder "$1"
  write "$1/ca.key" 600 "$key"
  write "$1/ca.pem" 644 "$text"
}
check_places() {
  local folder
  check_folder "${value[out]}" sticky
  for folder in "${request_folders[@]}"; do
    check_folder "$folder"
    check_absent "$folder/ca.pem" "$folder/cert.pem" "$folder/key.pem"
  done
}

# Signs all certificates, then writes them.
issue_all() {
  local keys=() certificates=() i folder authority="${value[authority]}"
  check_lifetime "${value[days]}"
  for i in "${!request_uris[@]}"; do
    leaf_extensions "${request_uris[i]}" "${request_hosts[i]}"
    keys[i]="$(new_key)"
    certificates[i]="$(sign "${keys[i]}" "${request_uris[i]#dws://*/}" "${value[days]}" \
      -cert "$authority/ca.pem" -keyfile "$authority/ca.key")"
  done
  for i in "${!request_uris[@]}"; do
    folder="${request_folders[i]}"
    make_folders "$folder"
    check_folder "$folder"  # another user may have made it by now
    write "$folder/key.pem" 640 "${keys[i]}"
    write "$folder/cert.pem" 644 "${certificates[i]}"
    write "$folder/ca.pem" 644 "$(openssl x509 -in "$authority/ca.pem")"
    show "$folder/cert.pem" issued
  done
}

run_authority() {
  parse "job-id out days force" "job-id out" "$@"
  make_authority "${value[out]}" "${value[days]}"
  show "${value[out]}/ca.pem" "the authority of job '${value[job-id]}'"
}
run_issue() {
  local role one
  parse "authority role name host out days force" "authority role name out" "$@"
  role="${value[role]}"
  [[ "$role" =~ ^(publish|train|receive|operate)$ ]] ||
    wrong "'$role' is not a role: expected publish, train, receive or operate"
  [[ "$role" != publish && "$role" != train ]] || is_rank "${value[name]}" ||
    wrong "'${value[name]}' is not a trainer rank: expected a number from 0 to $RANK_MAX"
  for one in "${host[@]}"; do check_host --host "$one"; done
  read_authority
  request "$(unescape "$job")" "$role" "${value[name]}" "${host[@]}"
  check_places
  issue_all
}
run_job() {
  local one role
  parse "job-id authority out publish train receive operate host days force" "job-id authority out" "$@"
  for role in publish train receive operate; do
    local -n asked="$role"
    for one in "${asked[@]}"; do requests "$role" "$one"; done
  done
  [[ ${#request_uris[@]} -gt 0 ]] || wrong "nothing to issue: expected --publish, --train, --receive or --operate"
  check_places
  if [[ -e "${value[authority]}/ca.pem" ]]; then
    read_authority
    [[ "$job" == "$(escape "${value[job-id]}")" ]] ||
      wrong "the authority in ${value[authority]} signs for job '$(unescape "$job")', not for job '${value[job-id]}'"
  else
    make_authority "${value[authority]}" $AUTHORITY_DAYS
  fi
  issue_all
}

renew_one() {
  local path="$1" authority="${value[authority]}" name uris="" dialled="" text
  if [[ -L "$path" ]]; then
    refuse "$path is a symbolic link to $(readlink -- "$path"), expected the certificate file itself, because renew" \
      "replaces that file: nothing is written; give the path $(realpath -m -- "$path")"
  fi
  check_certificate "$path"
  if openssl x509 -in "$path" -noout -checkend "$((value[within] * 86400))" >/dev/null; then
    show "$path" "not due"
    return
  fi
  openssl verify -no_check_time -no-CApath -no-CAstore -CAfile "$authority/ca.pem" "$path" >/dev/null 2>&1 ||
    refuse "$path: the certificate is not signed by the authority in $authority, expected one that is: issue a new one"
  while IFS= read -r name; do
    case "$name" in
      URI:dws://*)
        [[ "$name" =~ ^URI:dws://"$job"/(publish|train|receive|operate)/[A-Za-z0-9._~%-]+$ ]] ||
          refuse "$path: '${name#URI:}' is not an identity of job '$(unescape "$job")': issue a new certificate"
        uris+="${uris:+ }${name#URI:}"
        ;;
      DNS:* | "IP Address:"*)
        name="${name#*:}"
        is_host "$name" || refuse "$path: '$name' is not a host: issue a new certificate"
        dialled+="$name "
        ;;
    esac
  done < <(names_of "$path")
  [[ -n "$uris" ]] || refuse "$path: the certificate has no dws:// identity: issue a new one"
  check_lifetime "${value[days]}"
  leaf_extensions "$uris" "$dialled"
  openssl x509 -in "$path" -noout -pubkey >"$work/public"
  # Without the private key there is no request to sign. For a public key openssl begins at this moment, not before.
  openssl_for "the signature" x509 -new -force_pubkey "$work/public" -subj "$(subject_of "${uris#dws://*/}")" \
    -CA "$authority/ca.pem" -CAkey "$authority/ca.key" -set_serial "0x1$(openssl rand -hex 19)" -sha256 \
    -days "${value[days]}" -extfile "$work/extensions" -extensions extensions -out "$work/signed"
  text="$(openssl x509 -in "$work/signed")"
  write "$path" 644 "$text" replace
  show "$path" renewed
}

# A file that cannot be renewed does not stop the others.
run_renew() {
  local path code result=0
  parse "authority days within files" "authority" "$@"
  [[ ${#files[@]} -gt 0 ]] || wrong "nothing to renew: expected the files of certificates"
  read_authority
  for path in "${files[@]}"; do
    set +e  # a function behind || would go on after an error
    (set -e; trap '[[ -z "$unfinished" ]] || rm -f -- "$unfinished"' EXIT; renew_one "$path")
    code=$?
    set -e
    if [[ $code -ne 0 ]]; then result=$code; fi
  done
  exit "$result"
}
for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  esac
done
command="${1:-}"
[[ "$command" =~ ^(job|authority|issue|renew)$ ]] ||
  wrong "'$command' is not a command: expected job, authority, issue or renew"
shift
command -v openssl >/dev/null || refuse "the program openssl is missing: install it (Debian's package openssl)"
[[ "$(openssl version)" =~ ^OpenSSL\ ([3-9]|[1-9][0-9]) ]] ||
  refuse "openssl is '$(openssl version)', expected OpenSSL 3.0 or newer"
work="$(mktemp -d)"
"run_$command" "$@"
