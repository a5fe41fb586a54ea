"""Recognises allocations that failed, on the host or on a device, and turns them into OutOfMemory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from grpo_trainer.domain.errors import OutOfMemory
from grpo_trainer.domain.failures import WAYS_OUT

_WORDS: Final = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of the plain RuntimeErrors that torch raises when an allocation fails."""
_MAX_TEXT: Final = 300


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def out_of_memory(what: str, said: str) -> OutOfMemory:
    """what: the clause that names what does not fit. said: the text of the allocator's error."""
    cause = said.partition("\n")[0][:_MAX_TEXT] or "no memory left"
    return OutOfMemory(f"{what} ({cause}): {WAYS_OUT}")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Raises OutOfMemory where an allocation fails inside; the text begins with `what`."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(what, str(error)) from error


def let_go() -> None:
    """Give back what a failed try left, before the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
