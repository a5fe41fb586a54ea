#!/bin/sh
# nats-server with a key for each service. Streams lie in the folder of their account: one that was started without
# accounts, as up to 0.3.0, gives its folder the name of the account that has them now.
set -eu
account=upcycle
[ "${UPCYCLE_TENANT:-default}" = default ] || account=$UPCYCLE_TENANT-upcycle
streams=/data/jetstream
if [ -d "$streams/\$G" ] && [ ! -e "$streams/$account" ]; then
    mv "$streams/\$G" "$streams/$account"
    echo "the streams belong to the account $account now"
fi
exec nats-server -c /etc/nats/keyed.conf
