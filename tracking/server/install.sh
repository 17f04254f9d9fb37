#!/usr/bin/env bash
# The tracking server on this machine, without containers: Debian or Ubuntu with systemd.
#   sudo tracking/server/install.sh mlflow.example.org
# May be run again at any time, after an update of the project too: settings, secrets, runs and
# artifacts are kept.
set -euo pipefail

name=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)
code=/opt/mlproject-server
etc=/etc/mlproject-server
settings=$etc/server.env

refuse() {
    echo "error: $1" >&2
    exit 2
}

[ "$(id -u)" -eq 0 ] || refuse "this needs root: sudo $0 ${name:-mlflow.example.org}"
[ -n "$name" ] || [ -f "$settings" ] || refuse "name the server: $0 mlflow.example.org"
command -v apt-get >/dev/null || refuse "no apt-get here: use compose.yaml, or follow this script by hand"
command -v systemctl >/dev/null || refuse "no systemd here: use compose.yaml"

echo "packages ..."
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
    postgresql postgresql-client caddy python3-venv >/dev/null

echo "program ..."
id mlproject >/dev/null 2>&1 || useradd --system --home-dir /var/lib/mlproject-server mlproject
install -d "$code/bench" "$code/tracking/server"
install -m 644 "$project"/bench/{__init__,errors}.py "$code/bench/"
install -m 644 "$project/tracking/__init__.py" "$code/tracking/"
install -m 644 "$here"/*.py "$code/tracking/server/"
[ -x "$code/venv/bin/python" ] || python3 -m venv "$code/venv"
"$code/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/deploy/requirements.txt"

run() {
    (cd "$code" && "$code/venv/bin/python" -m tracking.server "$@")
}

echo "settings ..."
install -d -m 750 -g mlproject "$etc"
install -d -m 700 -o mlproject /var/lib/mlproject-server /var/backups/mlproject-server
if [ ! -f "$settings" ]; then
    run settings "$name" "$settings"
fi
chown root:mlproject "$settings"
chmod 640 "$settings"
has=$(sed -n 's/^SERVER_NAME=//p' "$settings")
[ -z "$name" ] || [ "${name,,}" = "$has" ] || refuse "the server is called $has: to rename it, edit $settings"
run --settings "$settings" check
# the settings are plain words now: `check` refuses quotes, blanks and dollars
grep -E '^(SERVER_NAME|MAX_UPLOAD|MAX_REQUESTS)=' "$settings" >"$etc/proxy.env"

cat >/usr/local/bin/mlproject-server <<EOF
#!/bin/sh
# The operator's commands: mlproject-server --help
cd $code || exit 1
exec runuser -u mlproject -- $code/venv/bin/python -m tracking.server --settings $settings "\$@"
EOF
chmod 755 /usr/local/bin/mlproject-server

echo "database ..."
systemctl enable --quiet --now postgresql
postgres() {
    (cd / && runuser -u postgres -- psql --no-psqlrc --quiet --no-align --tuples-only --set=ON_ERROR_STOP=1 "$@")
}
[ "$(postgres -c "SELECT 1 FROM pg_roles WHERE rolname = 'mlflow'")" = 1 ] ||
    postgres -c "CREATE ROLE mlflow LOGIN CREATEDB"
# by standard input: a command line can be read by every user
sed -n "s/^POSTGRES_PASSWORD=\(.*\)$/ALTER ROLE mlflow PASSWORD '\1';/p" "$settings" | postgres
[ "$(postgres -c "SELECT 1 FROM pg_database WHERE datname = 'mlflow'")" = 1 ] ||
    postgres -c "CREATE DATABASE mlflow OWNER mlflow"

echo "services ..."
install -m 644 "$here"/deploy/systemd/mlproject-* /etc/systemd/system/
install -D -m 644 "$here/deploy/systemd/caddy.conf" /etc/systemd/system/caddy.service.d/mlproject.conf
if [ -f /etc/caddy/Caddyfile ] && [ ! -f /etc/caddy/Caddyfile.before-mlproject ]; then
    cp /etc/caddy/Caddyfile /etc/caddy/Caddyfile.before-mlproject
fi
install -m 644 "$here/deploy/Caddyfile" /etc/caddy/Caddyfile
systemctl daemon-reload
systemctl enable --quiet mlproject-server.service mlproject-backup.timer caddy.service
systemctl restart mlproject-server.service mlproject-backup.timer caddy.service

echo "https://$(sed -n 's/^SERVER_NAME=//p' "$settings") - user admin, password: MLFLOW_AUTH_ADMIN_PASSWORD in $settings"
