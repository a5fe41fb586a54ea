"""Every generator that a step may draw from, as tensors: torch on host and device, python, numpy."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_TORCH: Final = "torch"
_PYTHON: Final = "python"
_NUMPY: Final = "numpy"
_CUDA: Final = "cuda"


class RandomState:
    """The generators of one session; sessions of a process do not draw from each other's."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        """As a process that seeded everything with `seed` would begin. device: the one that computes; other
        GPUs of the machine are left alone, because to ask one for its state takes memory on it."""
        self._device = torch.device(device)
        before = _read(self._device)
        _seed(seed)
        self._state = _read(self._device)
        _write(before, self._device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, torch, python and numpy draw from this state, and move it on."""
        before = _read(self._device)
        try:
            _write(self._state, self._device)
        except Exception:  # a stored state that no generator takes: some of them were set
            _write(before, self._device)
            raise
        try:
            yield
        finally:
            self._state = _read(self._device)
            _write(before, self._device)

    def tensors(self) -> dict[str, Tensor]:
        """uint8 arrays by generator."""
        return {name: state.clone() for name, state in self._state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` returned. The state of a GPU is left out where this session computes on none."""
        self._state = {**self._state, **{n: t for n, t in tensors.items() if n in self._state}}


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _read(device: torch.device) -> dict[str, Tensor]:
    numpy_state: Any = np.random.get_state()
    kind, keys, position, has_gauss, gauss = numpy_state
    state = {
        _TORCH: torch.get_rng_state(),
        _PYTHON: _packed(random.getstate()),
        _NUMPY: _packed([kind, keys.tolist(), position, has_gauss, gauss]),
    }
    if device.type == "cuda":
        state[_CUDA] = torch.cuda.get_rng_state(device)
    return state


def _write(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[_TORCH])
    version, words, gauss = _unpacked(state[_PYTHON])
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = _unpacked(state[_NUMPY])
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if _CUDA in state:
        torch.cuda.set_rng_state(state[_CUDA], device)


def _packed(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(data: Tensor) -> list[Any]:
    value: list[Any] = json.loads(data.numpy().tobytes())
    return value
