#!/bin/sh
# SeaweedFS with the identities that `upcycle store keys` wrote, and fsync before each answer. The bucket is created over
# S3, by `python -m blob_store.provision`: the S3 gateway does not notice one that is created behind its back.
# Further arguments go to `weed mini`. WEED_MASTER, WEED_FILER and WEED_IDENTITIES only differ where ports and files do.
set -eu
identities="${WEED_IDENTITIES:-/etc/seaweedfs/keys/s3.json}"
security="${identities%/*}/security.toml"
[ -s "$identities" ] && [ -s "$security" ] || {
    echo "$identities or $security is missing: upcycle store keys FOLDER makes them" >&2
    exit 1
}
sed -nE 's/^(ca|cert|key) = "(\/.*)"$/\2/p' "$security" | sort -u | while read -r file; do
    [ -r "$file" ] || {
        echo "$file, which $security names, cannot be read: upcycle store keys FOLDER --server-folder ${identities%/*}" >&2
        exit 1
    }
done
mkdir -p "$HOME/.seaweedfs"
cp "$security" "$HOME/.seaweedfs/security.toml" # what closes the inner ports
export GOMEMLIMIT="${GOMEMLIMIT:-512MiB}"
bucket="${UPCYCLE_S3_BUCKET:-upcycle}"
master="${WEED_MASTER:-127.0.0.1:9333}"
filer="${WEED_FILER:-127.0.0.1:8888}"

# The rule is kept in the filer's own store: setting it again at each start is harmless.
apply_fsync() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 1
        if printf 'lock\nfs.configure -locationPrefix=/buckets/%s/ -fsync -apply\nunlock\nexit\n' "$bucket" |
            timeout 20 weed shell -master="$master" -filer="$filer" 2>&1 | tr -d ' ' | grep -q '"fsync":true'; then
            echo "fsync is on for bucket $bucket"
            return 0
        fi
    done
    echo "fsync could not be switched on for bucket $bucket" >&2
    return 1
}
apply_fsync &

exec weed -logtostderr mini -dir=/data -ip=127.0.0.1 -ip.bind=0.0.0.0 \
    -s3.config="$identities" -disableHttp -s3.autoCreateBucket=false -s3.port.iceberg=0 -s3.port.lance=0 \
    -webdav=false -admin.ui=false -master.telemetry=false "$@"
