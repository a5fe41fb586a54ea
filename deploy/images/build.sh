#!/bin/sh
# Builds the two images of docker-compose.yml, `upcycle` and `upcycle-train`. Where the base images cannot be pulled, it
# makes stand-ins (stand_in.sh) and installs from wheels that this machine downloads (wheels.sh), without a network inside.
# The second build takes what others wrote from the first; a later one, after a change of ours, from the one before.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
deploy/images/stand_in.sh
wheels=""
if [ -n "$(docker images -q -f label=upcycle.stand-in python:3.11-slim)" ]; then
    deploy/images/wheels.sh
    wheels=build/wheels
fi
for extras in "" train; do
    docker build -q -f deploy/Dockerfile --build-arg "WHEELS=$wheels" --build-arg "EXTRAS=$extras" \
        -t "upcycle${extras:+-$extras}:$version" .
done
