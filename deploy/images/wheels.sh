#!/bin/sh
# Downloads every wheel that the images need into build/wheels, so that they are built without a network:
# `docker build --build-arg WHEELS=build/wheels`. Versions and hashes are those of requirements/; torch is the build that
# torch.sh finds. PYTHON must be the Python of the images (3.11).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
locks=$(printf 'requirements/%s.txt ' image torch torch_cpu build stand_in)
# shellcheck disable=SC2086 # one word for each lock
wanted=$({ "$python" --version; cat requirements/torch.sh deploy/images/wheels.sh $locks; } | sha256sum)
if [ "$(cat build/wheels/.of 2>/dev/null)" = "$wanted" ]; then
    exit 0 # all of them were downloaded for these requirements
fi
get() { "$python" -m pip download -q --dest build/wheels --no-deps --require-hashes -r "requirements/$1.txt"; }
rm -rf build/wheels # what it has of older locks would go into each build
mkdir -p build/wheels
get image
requirements/torch.sh "$python" download --dest build/wheels
get build
get stand_in
echo "$wanted" >build/wheels/.of
du -sh build/wheels
