#!/bin/sh
# Writes what others wrote of each image, as CycloneDX (JSON), from the locks that it is built from: sbom.sh FOLDER
# upcycle-train-cpu is upcycle-train where the build of torch for CPUs was found (requirements/torch.sh).
set -eu
cd "$(dirname "$0")/../.."
folder=$1
mkdir -p "$folder"

bill() { # image, locks...
    name=$1
    shift
    cat "$@" | cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
        --output-reproducible --spec-version 1.6 --output-format JSON --output-file "$folder/$name.cdx.json" -
}

bill upcycle requirements/image.txt
bill upcycle-train requirements/image.txt requirements/torch.txt
bill upcycle-train-cpu requirements/image.txt requirements/torch_cpu.txt
