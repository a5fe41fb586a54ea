#!/bin/sh
# Builds the two images of docker-compose.yml, `upcycle` and `upcycle-train`. Where the base images cannot be pulled, it
# makes stand-ins (stand_in.sh) and installs from wheels that this machine downloads (wheels.sh), without a network inside.
# PIP_CONFIG_FILE: pip's configuration while they are built, for other indexes. The second build takes what others wrote
# from the first; a later one, after a change of ours, from the one before.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
. deploy/images/buildkit.sh
deploy/images/stand_in.sh
wheels="" python=""
if python=$(sed -n 's/^UPCYCLE_PYTHON_IMAGE=//p' build/stand_ins.env) && [ -n "$python" ]; then
    deploy/images/wheels.sh
    wheels=build/wheels
fi
for extras in "" train; do
    buildkit -q -f deploy/Dockerfile ${python:+--build-arg "PYTHON_IMAGE=$python"} --build-arg "WHEELS=$wheels" \
        --build-arg "EXTRAS=$extras" ${PIP_CONFIG_FILE:+--secret "id=pip.conf,src=$PIP_CONFIG_FILE"} \
        -t "upcycle${extras:+-$extras}:$version" .
done
