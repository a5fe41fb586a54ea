#!/bin/sh
# Makes the keys that a platform in containers lacks, and keeps those that it has. keys.sh FOLDER: of NATS, one for each
# service (docs/do/bus-keys.md), with FOLDER/nats/accounts.conf, which the server reads, and the key that the planner
# encrypts secrets of MCP servers with (docs/do/secrets.md); of the object store, one for each service
# (docs/do/store-keys.md), with FOLDER/seaweedfs/s3.json, which the server reads; of Postgres, one password for each service
# that keeps tables (docs/do/deploy.md, "Postgres"), with FOLDER/provision/logins.json, which the job `provision` reads.
set -eu
umask 077
upcycle bus keys "$1"
upcycle store keys "$1" --server-folder /etc/seaweedfs/keys ${STORE_HAS_ONE_KEY:+--one-key}
python -m sql_store.logins "$1"
key=$1/scenario_runner/secrets.key
if [ ! -s "$key" ]; then
    head -c 32 /dev/urandom | base64 >"$key.partial"
    mv "$key.partial" "$key"
    echo "made $key: keep a copy of it; without it the secrets in a backup cannot be read"
fi
