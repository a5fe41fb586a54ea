"""One version of a session on the host, and the thread that writes it out while the next step computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from grpo_trainer.learner.protocol import Canary
from grpo_trainer.learner.sharding import whole
from grpo_trainer.learner.tensor_files import weights_of
from training_states.files import write_tensors
from training_states.room import room_for

_NUM_THREADS: Final = 1
"""Of torch in the writer: the rest belongs to the step that computes meanwhile."""

Export = Callable[[Path], None]


class WriterThread:
    """The one thread in which states and policies are written, while the learner's thread takes steps."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="writer", initializer=torch.set_num_threads, initargs=(_NUM_THREADS,)
        )

    async def run(self, work: Callable[[], None]) -> None:
        """Do `work` there, after what was asked earlier."""
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Let the running work finish, drop the rest."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class HostSnapshot:
    """One version of a session, on the host: later steps do not change it.

    Both methods work in a thread of their own, may be called again, and raise StoreFull where the disk has no
    room. canary: rows of the last batch under these weights.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], canary: Canary, export: Export, writer: WriterThread
    ) -> None:
        """tensors: a host copy. export: writes the policy from it; called in the writer's thread."""
        self._tensors = tensors
        self._canary = canary
        self._export = export
        self._writer = writer

    @property
    def canary(self) -> Canary:
        """Rows that prove a reload."""
        return self._canary

    async def save(self, directory: Path) -> None:
        """Write everything that the next step depends on, as safetensors with an index in JSON."""
        await self._writer.run(lambda: write_tensors(directory, self._tensors))

    async def export(self, directory: Path) -> None:
        """Write the policy as a HF directory; equal weights, equal bytes."""
        await self._writer.run(lambda: self._exported(directory))

    def _exported(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        num_bytes = sum(one.nbytes for one in weights_of(self._tensors).values())
        with room_for("the weights of a version", num_bytes, directory):
            self._export(directory)


def host_state(module: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a module around copies of its parameters that were made before, by name: tied names stay
    one tensor, and what is no parameter is copied now. All ranks must ask for it."""
    copies = {id(parameter): weights[name] for name, parameter in module.named_parameters()}
    state: Mapping[str, Tensor] = module.state_dict(keep_vars=True)
    return {
        name: copies[id(tensor)] if isinstance(tensor, nn.Parameter) else whole(tensor).to("cpu", copy=True)
        for name, tensor in state.items()
    }
