#!/bin/sh
# A short check that containers run here: starts an engine of its own where none runs (engine.sh), takes NATS from its
# image, or from this machine's wheel where that cannot be pulled, and publishes and reads on it (event_bus's suites). What a machine
# cannot do is said in FILE, in one line, and is no failure; a suite that fails is one. check.sh FILE
set -eu
cd "$(dirname "$0")/../.."
file=$1
image=$(deploy/images/others.sh | sed -n 's/^UPCYCLE_NATS_IMAGE //p')
folder=$(mktemp -d)
mkdir -p "$(dirname "$file")"
made=""

say() {
    echo "containers: $1" | tee "$file"
}

not_checked() {
    say "NOT checked: $1"
    exit 0
}

clean() {
    [ -z "$made" ] || docker rmi -f "$image" >/dev/null 2>&1 || true
    deploy/images/engine.sh stop "$folder" || true
    rm -rf "$folder" 2>/dev/null || true
}

from_wheel() { # the server is one static program, so nothing else is needed
    program=$(command -v nats-server) || return 1
    image=${image%@*} # what is made here has no digest
    mkdir -p "$folder/root/tmp"
    cp -L "$program" "$folder/root/nats-server"
    tar -C "$folder/root" -c . | docker import -c 'LABEL upcycle.stand-in=nats' -c 'ENTRYPOINT ["/nats-server"]' - "$image" >/dev/null
    made=1
}

trap clean EXIT
trap 'exit 130' INT TERM
if ! docker info >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || not_checked "no engine runs, and only root can start one"
    command -v dockerd >/dev/null || not_checked "no engine runs, and none is installed (Debian: docker.io)"
fi
started=$(deploy/images/engine.sh start "$folder" 2>"$folder/why") || not_checked "$(tail -1 "$folder/why")"
eval "$started"
docker image inspect "$image" >/dev/null 2>&1 || docker pull -q "$image" >/dev/null 2>&1 || from_wheel ||
    not_checked "$image cannot be pulled, and there is no nats-server on PATH"
ran=$(docker run --rm "$image" --version 2>&1) || not_checked "the engine cannot run a container: $(echo "$ran" | tail -1)"
UPCYCLE_NATS_IMAGE=$image pytest -q -m docker tests/docker/test_nats_image.py || {
    say "FAILED on $ran"
    exit 1
}
say "checked, $ran in a container${made:+ (its program from the wheel: the image cannot be pulled)}"
