"""Durable states of models trained by hand.

`interactive/<model>/step-<n>/` holds the files of tensors under their digest and, written last and only if
absent, the marker `state.json`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from blob_store import BlobStore
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken
from grpo_trainer.domain.hands import HandState, hand_state_from_json
from grpo_trainer.domain.trajectories import StoredBody

_ROOT: Final = "interactive"
_MARKER: Final = "state.json"
_STEP: Final = re.compile(r"/step-(\d{8})/")


class InteractiveStates:
    """See ports.HandStates."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def newest(self, model: str) -> HandState | None:
        """See ports.HandStates."""
        markers = await self._markers(model)
        return await self._read(markers[-1]) if markers else None

    async def of_version(self, model: str, version: int) -> HandState | None:
        """See ports.HandStates."""
        for key in reversed(await self._markers(model)):
            state = await self._read(key)
            if state.session.version <= version:
                return state if state.session.version == version else None
        return None

    async def commit(self, state: HandState, tensors: Path) -> HandState:
        """See ports.HandStates."""
        folder = _folder(state)
        files, whole = await asyncio.to_thread(_digest, tensors)
        with object_store(f"step {state.session.step} of {state.session.spec.model}"):
            refs = [await self._store.put_file(f"{folder}/{whole}/{file.name}", file) for file in files]
            session = replace(state.session, tensors=tuple(wire.stored(ref) for ref in refs))
            state = replace(state, session=session)
            marker = await self._store.put_if_absent(f"{folder}/{_MARKER}", _bytes(state))
        if marker is None:
            raise LineageTaken(
                f"step {state.session.step} of {state.session.spec.model} is already written with another "
                "content: two trainers train one model by hand; stop one of them"
            )
        return state

    async def tensors(self, state: HandState, path: Path) -> None:
        """See ports.HandStates."""
        with object_store(f"tensors of step {state.session.step} of {state.session.spec.model}"):
            for file in state.session.tensors:
                await self._store.get_file(wire.blob_ref(file), path / file.key.rpartition("/")[2])

    def marker_of(self, state: HandState) -> StoredBody:
        """See ports.HandStates."""
        data = _bytes(state)
        return StoredBody(f"{_folder(state)}/{_MARKER}", hashlib.sha256(data).hexdigest(), len(data))

    async def prune(self, model: str, *, newest: int) -> None:
        """See ports.HandStates."""
        steps: dict[str, list[str]] = {}
        with object_store(f"old states of {model}"):
            for key in await self._store.list(f"{_prefix(model)}/"):
                if (match := _STEP.search(key)) is not None:
                    steps.setdefault(match[1], []).append(key)
            for step in sorted(steps)[:-newest]:
                # The marker goes first: a state is whole or it is not there.
                for key in sorted(steps[step], key=lambda key: not key.endswith(_MARKER)):
                    await self._store.delete(key)

    async def _markers(self, model: str) -> list[str]:
        with object_store(f"states of {model}"):
            keys = await self._store.list(f"{_prefix(model)}/")
        return sorted(key for key in keys if key.endswith(f"/{_MARKER}"))

    async def _read(self, key: str) -> HandState:
        with object_store(key):
            data = await self._store.read(key)
        if data is None:
            raise BrokenArtifact(f"{key} was listed and is gone: who deletes the states of this model?")
        try:
            return hand_state_from_json(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArtifact(f"{key} is no state that this trainer reads: {error}") from error


def _prefix(model: str) -> str:
    return f"{_ROOT}/{quote(model, safe='')}"


def _folder(state: HandState) -> str:
    return f"{_prefix(state.session.spec.model)}/step-{state.session.step:08d}"


def _bytes(state: HandState) -> bytes:
    return json.dumps(state.to_json(), sort_keys=True, separators=(",", ":")).encode()


def _digest(directory: Path) -> tuple[list[Path], str]:
    """The files of a folder, and one digest of them all."""
    files = sorted(directory.iterdir())
    return files, hashlib.sha256("".join(map(_sha256, files)).encode()).hexdigest()[:16]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
