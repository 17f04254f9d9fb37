#!/usr/bin/env bash
# Start-up script of a Google Cloud GPU machine: install the driver where there is none, set the
# project up, sweep, carry everything home to a bucket, and switch the machine off, whatever
# happened. README.md beside this file says how to start one. Google's guest agent runs it as root
# at every boot: a machine that was stopped in between goes on where it was.
#
# Set as metadata of the instance, each read once; all but the first two have a default:
#   mlproject-repository       what `git clone` takes
#   mlproject-bucket           gs://BUCKET[/FOLDER] for records, log and exit code
#   mlproject-ref              branch, tag or commit; default: the repository's own
#   mlproject-sweep            words after `mlproject sweep`; default: classic
#   mlproject-tracking-uri     MLflow's server; default: none, the records go to the bucket alone
#   mlproject-tracking-user    its user; default: none
#   mlproject-tracking-secret  name of the Secret Manager secret that holds the user's password
#   mlproject-max-hours        the sweep is ended after so many hours; default: 12
# Metadata can be read by whoever sees the instance, and by every process on it: no password there.
set -euo pipefail

readonly home="${MLPROJECT_HOME:-/opt/mlproject}"
readonly log="$home/startup.log"
readonly metadata_server="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
readonly installer=https://storage.googleapis.com/compute-gpu-installation-us/installer/latest/cuda_installer.pyz

bucket='' folder='' repository='' ref='' hours='' sweep=() installing='' sweeping=''

# both at once and not by way of the pipe: the log is whole when it is carried home
say() { echo "mlproject: $*" | tee -a "$log" >&3; }

die() {
    say "$1"
    exit "${2:-1}"
}

metadata() { # PATH: a value of the metadata server
    curl --silent --show-error --fail --noproxy '*' --max-time 10 --retry 5 --retry-connrefused \
        --header 'Metadata-Flavor: Google' "$metadata_server/$1"
}

field() { # NAME...: a text inside the JSON on standard input; fails where there is none
    python3 -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]:
    value = value[name]
print(value)' "$@"
}

settings() { # NAME=DEFAULT...: this instance's own or else the default, one a line
    python3 -c '
import json, sys
attributes = json.load(sys.stdin)
for word in sys.argv[1:]:
    name, _, default = word.partition("=")
    print(*attributes.get("mlproject-" + name, default).split())' "$@"
}

api() { # WORDS: curl, as this machine's service account; the token is in no command line
    local token
    token="$(metadata instance/service-accounts/default/token | field access_token)" || return
    curl --silent --show-error --fail --max-time 600 --retry 5 --retry-connrefused \
        --config <(printf 'header = "Authorization: Bearer %s"\n' "$token") "$@"
}

put() { # FILE: into the bucket
    api --output /dev/null --request POST --upload-file "$1" \
        --header 'Content-Type: application/octet-stream' \
        "https://storage.googleapis.com/upload/storage/v1/b/${bucket%%/*}/o?uploadType=media&name=${folder//\//%2F}%2F${1##*/}"
}

carry_home() { # CODE: the records, the log that tells of them, and last the exit code
    if [[ -d "$home/records" ]]; then
        if ! tar --create --gzip --file "$home/records.tar.gz" --directory "$home" records ||
            ! put "$home/records.tar.gz"; then
            say "the records are not in the bucket; they stay on this machine's disk"
        fi
    fi
    say "ends with exit code $1"
    echo "$1" >"$home/exit-code"
    if ! put "$log" || ! put "$home/exit-code"; then
        say "the log is not in the bucket; it is $log on this machine's disk"
    fi
}

finish() {
    local code=$?
    trap '' INT TERM HUP # from here nothing keeps the machine from being switched off
    set +e
    if [[ -n "$installing" && "$(systemctl is-system-running)" == stopping ]]; then
        say "the driver's installer restarts the machine; this script runs again then"
        exit 0
    fi
    if [[ -n "$sweeping" ]] && kill -TERM "$sweeping" 2>/dev/null; then
        wait "$sweeping" # it writes its record
    fi
    if [[ -n "$folder" ]]; then
        carry_home "$code"
    fi
    sync
    shutdown --poweroff now || poweroff --force
}

read_settings() {
    local attributes words project uri user secret
    attributes="$(metadata 'instance/attributes/?recursive=true')" || die "no metadata server"
    {
        read -r repository
        read -r bucket
        read -r ref
        read -r words
        read -r uri
        read -r user
        read -r secret
        read -r hours
    } < <(settings repository= bucket= ref= sweep=classic tracking-uri= tracking-user= \
        tracking-secret= max-hours=12 <<<"$attributes")

    [[ "$hours" =~ ^[1-9][0-9]{0,2}$ ]] || die "mlproject-max-hours=$hours: give whole hours" 2
    # the second belt, should this script be killed; the instance's maxRunDuration is the third
    shutdown --poweroff "+$((hours * 60 + 120))"

    bucket="${bucket#gs://}"
    bucket="${bucket%/}"
    [[ -n "$bucket" ]] || die "mlproject-bucket is not set: nothing would come home" 2
    folder="$(metadata instance/name)-$(date --utc +%Y%m%dT%H%M%SZ)" || die "no metadata server"
    [[ "$bucket" != */* ]] || folder="${bucket#*/}/$folder"

    [[ -n "$repository" ]] || die "mlproject-repository is not set: give what git clone takes" 2
    [[ "$uri $repository" != *://*:*@* ]] ||
        die "a password in the metadata: whoever sees this machine can read it; change it" 2
    read -ra sweep <<<"$words"
    [[ -z "$uri" ]] || export MLFLOW_TRACKING_URI="$uri"
    if [[ -n "$user" ]]; then
        [[ -n "$secret" ]] || die "mlproject-tracking-user without mlproject-tracking-secret" 2
        project="$(metadata project/project-id)" || die "no metadata server"
        MLFLOW_TRACKING_PASSWORD="$(
            api "https://secretmanager.googleapis.com/v1/projects/$project/secrets/$secret/versions/latest:access" |
                field payload data | base64 --decode
        )" || die "the secret $secret cannot be read: give this service account access to it"
        export MLFLOW_TRACKING_USERNAME="$user" MLFLOW_TRACKING_PASSWORD
    fi
}

install_packages() {
    # upgrades in the background would share the processor with what is measured
    systemctl stop apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service || true
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5)
    "${apt[@]}" update || die "apt-get cannot fetch its lists"
    # a compiler and Python's headers: torch.compile needs them
    "${apt[@]}" install --yes ca-certificates git make build-essential python3-dev python3-venv ||
        die "apt-get cannot install what is needed"
}

wait_for_driver() { # SECONDS
    local waited
    for ((waited = 0; waited <= $1; waited += 5)); do
        if nvidia-smi --list-gpus 2>/dev/null; then return 0; fi
        sleep 5
    done
    return 1
}

ensure_driver() {
    local tries
    if [[ -x "${MLPROJECT_DLVM:-/opt/deeplearning/install-driver.sh}" ]]; then
        # Deep Learning VM images bring the driver, or install it while we wait
        wait_for_driver 900 || die "the image's driver does not come up"
        return
    fi
    if wait_for_driver 30; then return; fi
    tries="$(cat "$home/driver-tries" 2>/dev/null || echo 0)"
    ((tries < 4)) || die "no driver after $tries tries; see /opt/google/cuda-installer"
    echo "$((tries + 1))" >"$home/driver-tries"
    say "installing NVIDIA's driver with Google's installer, which restarts the machine"
    installing=yes
    curl --silent --show-error --fail --location --retry 5 --output "$home/cuda_installer.pyz" \
        "$installer" || die "the driver's installer cannot be fetched"
    # it reports success when it has asked for a restart too, which then takes a moment
    python3 "$home/cuda_installer.pyz" install_driver || die "the driver cannot be installed"
    wait_for_driver 60 || die "the driver does not come up"
    installing=
}

set_up() {
    if [[ -d "$home/clone/.git" ]]; then
        git -C "$home/clone" fetch --quiet --tags origin || die "git cannot fetch $repository"
    else
        rm -rf "$home/clone.partial" # of a machine that was stopped while it cloned
        git clone --quiet -- "$repository" "$home/clone.partial" ||
            die "git cannot clone $repository"
        mv "$home/clone.partial" "$home/clone"
    fi
    if [[ -n "$ref" ]]; then
        git -C "$home/clone" checkout --quiet --detach "origin/$ref" 2>/dev/null ||
            git -C "$home/clone" checkout --quiet --detach "$ref" || die "$repository has no $ref"
    fi
    say "at $(git -C "$home/clone" rev-parse HEAD)"
    make -C "$home/clone" setup || die "set-up failed"
}

# at its end the machine goes off: nobody wants that on a desk
if [[ "$(cat "${MLPROJECT_DMI:-/sys/class/dmi/id/product_name}")" != "Google Compute Engine" ]]; then
    echo "gcp-startup.sh switches the machine off; it runs on Google Cloud's machines only" >&2
    exit 2
fi
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT HUP
mkdir -p "$home"
export HOME="${HOME:-/root}" MLPROJECT_RECORDS="$home/records"
exec 3>&1 > >(tee -a "$log") 2>&1

read_settings
install_packages
ensure_driver
set_up
say "sweep ${sweep[*]}, for at most $hours h"
# 124: the hours are over. The sweep was asked to end then, and has written its record.
timeout --kill-after=10m "${hours}h" "$home/clone/deploy/measure.sh" "${sweep[@]}" &
sweeping=$!
wait "$sweeping"
