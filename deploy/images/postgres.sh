#!/bin/sh
# Does what the official image's entrypoint does with the variables that we use: makes the database once, with
# POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, runs /docker-entrypoint-initdb.d/*.sql, then serves.
set -eu
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --clear-groups "$0" "$@"
fi
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    secret=$(mktemp)
    printf '%s' "${POSTGRES_PASSWORD:?set it}" >"$secret"
    initdb --username "$user" --pwfile "$secret" --encoding UTF8 --auth-local trust --auth-host scram-sha-256
    rm "$secret"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl start -w -o "-c listen_addresses='' -k /tmp"
    [ "$database" = postgres ] || createdb -h /tmp -U "$user" "$database"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        [ -f "$script" ] && psql -h /tmp -U "$user" -d "$database" -v ON_ERROR_STOP=1 -f "$script"
    done
    pg_ctl stop -w -m fast
fi
exec postgres -c listen_addresses='*' -k /tmp # where the wheel's psql and pg_isready look
