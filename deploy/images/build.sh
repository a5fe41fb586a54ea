#!/bin/sh
# Builds the two images of docker-compose.yml, `upcycle` and `upcycle-train`. Where the base images cannot be pulled, it
# makes stand-ins (stand_in.sh) and installs from wheels that this machine downloads (wheels.sh), without a network inside.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
wheels=""
if ! docker pull -q python:3.11-slim >/dev/null 2>&1; then
    echo "python:3.11-slim cannot be pulled: building from Debian's packages and this machine's wheels" >&2
    deploy/images/wheels.sh
    deploy/images/stand_in.sh
    wheels=build/wheels
fi
for extras in "" train; do
    docker build -q -f deploy/Dockerfile --build-arg "WHEELS=$wheels" --build-arg "EXTRAS=$extras" \
        -t "upcycle${extras:+-$extras}:$version" .
done
