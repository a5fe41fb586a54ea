#!/bin/sh
# Imports the model that the engines serve, so that `docker compose up --wait` finds them healthy: they are not ready before
# their model is there. A model that the registry has, under that name, is left alone. model.sh NAME FOLDER
set -eu
if upcycle models head "$1" >/dev/null 2>&1; then
    echo "the registry has $1"
elif [ -f "$2/config.json" ]; then
    upcycle models import "$2" --name "$1" --if-not-exists
else
    echo "no model $1: give UPCYCLE_MODEL_DIR, a Hugging Face directory, or import it; engines wait for it" >&2
fi
