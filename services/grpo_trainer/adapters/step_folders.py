"""Folders of steps in the object store: where a durable state lies, of runs and of interactive sessions.

Such a folder holds the files of tensors under the digest of them all and, written last and only if
absent, the marker `state.json`: a state exists once its marker does, and only one trainer can write it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from blob_store import BlobRef, BlobStore, ref_of_bytes, ref_of_file
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken
from grpo_trainer.domain.states import SessionState
from identities.objects import parse_training_step, training_step

State = TypeVar("State", bound="StepState")

MARKER: Final = "state.json"


def by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys below step folders, by folder. keys: as a store lists them, sorted, and so are the folders."""
    folders: dict[str, list[str]] = {}
    for key in keys:
        if (found := parse_training_step(key)) is not None:
            folders.setdefault(found.folder, []).append(key)
    return folders


def old(folders: Mapping[str, Collection[str]], *, newest: int, is_over: bool = False) -> list[str]:
    """The folders before the `newest` states; if nothing is written any more, the folders after them too. A
    folder without a marker is no state: a trainer may be writing it, or was killed there."""
    kept = [folder for folder, keys in folders.items() if f"{folder}/{MARKER}" in keys][-newest:]
    return [one for one in folders if one not in kept and (is_over or (kept and one < kept[0]))]


async def delete(store: BlobStore, keys: Iterable[str]) -> None:
    """Delete objects of one folder. The marker goes first: a state is whole or it is not there."""
    for key in sorted(keys, key=lambda key: (not key.endswith(f"/{MARKER}"), key)):
        await store.delete(key)


class StepState(Protocol):
    """What is stored of a step, of a run or of an interactive session."""

    @property
    def session(self) -> SessionState: ...

    def with_tensors(self, files: tuple[BlobRef, ...]) -> Self:
        """The same state with the claim checks of its files."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a stable order."""


class StepStates(Generic[State]):
    """Reads and writes the step folders of one kind of state. line: the folder that precedes a step's."""

    def __init__(
        self, store: BlobStore, line: Callable[[SessionState], str], parse: Callable[[Any], State]
    ) -> None:
        self._store = store
        self._line = line
        self._parse = parse

    async def commit(self, state: State, tensors: Path | None) -> State:
        """Write the files of the local folder `tensors`, then the marker. Raises LineageTaken where another
        marker is there."""
        folder = self._folder(state)
        with object_store(_named(state)):
            if tensors is not None:
                state = state.with_tensors(await self._put_tensors(folder, tensors))
            marker = await self._store.put_if_absent(f"{folder}/{MARKER}", _bytes(state))
        if marker is None:
            raise LineageTaken(
                f"{folder} is already written with another content: two trainers take the steps of one run, "
                "or of one model; stop one of them"
            )
        return state

    async def _put_tensors(self, folder: str, tensors: Path) -> tuple[BlobRef, ...]:
        """The content is in the keys: another trainer's files cannot replace these."""
        shas = await asyncio.to_thread(_hashed, tensors)
        whole = hashlib.sha256("".join(shas.values()).encode()).hexdigest()[:16]
        put, into = self._store.put_file, f"{folder}/{whole}"
        return tuple([await put(f"{into}/{one.name}", one, sha256=sha) for one, sha in shas.items()])

    async def tensors(self, state: State, directory: Path) -> None:
        """Fetch the files of a state into an empty local folder."""
        with object_store(f"tensors of {_named(state)}"):
            for file in state.session.tensors:
                await self._store.get_file(file, directory / file.key.rpartition("/")[2])

    def marker_of(self, state: State) -> BlobRef:
        """Claim check of the marker of a committed state."""
        return ref_of_bytes(f"{self._folder(state)}/{MARKER}", _bytes(state))

    async def read(self, key: str) -> State:
        """The state of a marker that was listed. Raises BrokenArtifact."""
        with object_store(key):
            data = await self._store.read(key)
        if data is None:
            raise BrokenArtifact(f"{key} was listed and is gone: another program deletes training states")
        try:
            return self._parse(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArtifact(f"{key} is no training state that this trainer reads: {error}") from error

    def _folder(self, state: State) -> str:
        return training_step(self._line(state.session), state.session.step)


def _named(state: StepState) -> str:
    return f"step {state.session.step} of {state.session.spec.run_id}"


def _bytes(state: StepState) -> bytes:
    return json.dumps(state.to_json(), sort_keys=True, separators=(",", ":")).encode()


def _hashed(directory: Path) -> dict[Path, str]:
    """The files of a folder, sorted, with their sha256."""
    return {file: ref_of_file(file.name, file).sha256 for file in sorted(directory.iterdir())}
