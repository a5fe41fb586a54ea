#!/bin/sh
# Starts a Docker engine where none runs, on a Debian machine where we are root: containerd and dockerd of the package
# docker.io (apt-get install docker.io). `engine.sh start FOLDER` prints what to export; `engine.sh stop FOLDER` ends it.
# FOLDER keeps images, containers, sockets and logs. An engine that already answers is used as it is.
set -eu

usage() {
    echo "usage: $0 start|stop FOLDER" >&2
    exit 2
}
[ $# -eq 2 ] || usage
folder=$(mkdir -p "$2" && cd "$2" && pwd)
host="unix://$folder/docker.sock"

answers() {
    docker --host "$1" info >/dev/null 2>&1
}

wait_for() { # what, seconds, command...
    what=$1 left=$2
    shift 2
    until "$@"; do
        left=$((left - 1))
        if [ "$left" -lt 0 ]; then
            echo "$what did not come up; its log is in $folder" >&2
            exit 1
        fi
        sleep 1
    done
}

start() {
    if docker info >/dev/null 2>&1; then
        echo "# the engine of this machine answers"
        return
    fi
    for program in containerd dockerd docker; do
        command -v "$program" >/dev/null || {
            echo "$program is not installed: apt-get install --no-install-recommends docker.io" >&2
            exit 3
        }
    done
    if ! answers "$host"; then
        setsid containerd --root "$folder/containerd" --state "$folder/containerd.state" \
            --address "$folder/containerd.sock" >"$folder/containerd.log" 2>&1 &
        echo $! >"$folder/containerd.pid"
        wait_for containerd 20 test -S "$folder/containerd.sock"
        # Without this limit containers fail where the hard limit of this machine is below Docker's default.
        setsid dockerd --host "$host" --data-root "$folder/images" --exec-root "$folder/exec" \
            --pidfile "$folder/dockerd.pid" --containerd "$folder/containerd.sock" \
            --default-ulimit nofile=1024:1024 >"$folder/dockerd.log" 2>&1 &
        wait_for dockerd 30 answers "$host"
    fi
    # Ryuk, which clears up after a test run that was killed, is an image that may not be there.
    echo "export DOCKER_HOST=$host TESTCONTAINERS_RYUK_DISABLED=true"
}

stop() {
    for name in dockerd containerd; do
        [ -f "$folder/$name.pid" ] || continue
        pid=$(cat "$folder/$name.pid")
        kill "$pid" 2>/dev/null || true
        # On a busy machine dockerd was seen to take more than 30 s.
        wait_for "the end of $name" 90 sh -c "! kill -0 $pid 2>/dev/null"
        rm -f "$folder/$name.pid"
    done
}

case $1 in
start) start ;;
stop) stop ;;
*) usage ;;
esac
