"""The variables of a child process: those that programs need to run, and no secret of its parent.

A child that computes (an engine, a rank) or serves (NATS, the object store) needs none of the passwords, keys
and tokens that its parent was started with, and whatever gets into it could read them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

STACK_MARKER: Final = "UPCYCLE_STACK_DIR"
"""By it a stack finds processes that it left behind."""
_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "UPCYCLE_TENANT", STACK_MARKER,
})  # fmt: skip
_PREFIXES: Final = (
    "LC_", "PYTHON", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_",
    "NCCL_", "GLOO_", "UCX_", "FI_", "HIP_", "HSA_", "ROCR_", "TORCH", "PYTORCH_", "TRITON_", "VLLM_", "RAY_",
    "HF_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_", "MALLOC_", "GOMAXPROCS", "GOMEMLIMIT",
    "UPCYCLE_EDGE_",
)  # fmt: skip
_SECRET_WORDS: Final = frozenset(
    {"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTH", "HEADERS"}
)


def child_environment(named: Sequence[str] = (), *, of: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of the variables of this process, or of `of`, what a child gets. named: more of them, by name; also
    those that look like a secret, such as HF_TOKEN."""
    variables = os.environ if of is None else of
    return {name: value for name, value in variables.items() if name in named or _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    is_needed = name in _NAMES or name.startswith(_PREFIXES)
    return is_needed and not _SECRET_WORDS & {*name.upper().split("_")}
