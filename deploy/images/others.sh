#!/bin/sh
# Prints the images of others that docker-compose.yml and deploy/Dockerfile name, each as NAME IMAGE; NAME is the variable
# of Compose that chooses another one. An image that `make pin` pinned ends with @sha256:….
set -eu
cd "$(dirname "$0")/../.."
sed -n 's|^ARG PYTHON_IMAGE=\(.*\)$|UPCYCLE_PYTHON_IMAGE \1|p' deploy/Dockerfile
sed -n '/{UPCYCLE_TRAIN_IMAGE:/d; s|^ *image: ${\(UPCYCLE_[A-Z]*_IMAGE\):-\(.*\)}$|\1 \2|p' docker-compose.yml
