"""Bodies and training states in the object store.

`training/<model>/<run>/step-<n>/` holds the files of tensors under their digest and, written last and only
if absent, the marker `state.json`: a state exists once its marker does, and only one trainer can write it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from blob_store import BlobStore
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.telemetry import STATES_REMOVED
from grpo_trainer.domain.contexts import EpisodeTokens
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken, UnusableTrajectory
from grpo_trainer.domain.states import SessionState, state_from_json
from grpo_trainer.domain.trajectories import GradedTrajectory, StoredBody
from grpo_trainer.ports import FoundStates
from trajectory_body import MalformedBody, unpack

_ROOT: Final = "training"
_MARKER: Final = "state.json"
_STOPPED: Final = "stopped.json"
_CLOSED: Final = "closed.json"


class BlobBodies:
    """See ports.Bodies."""

    def __init__(self, store: BlobStore, *, train_parse_errors: bool) -> None:
        self._store = store
        self._train_parse_errors = train_parse_errors

    async def tokens(self, trajectory: GradedTrajectory) -> EpisodeTokens:
        """See ports.Bodies."""
        try:
            with object_store(trajectory.trajectory_id):
                data = await self._store.get(wire.blob_ref(trajectory.body))
            body = unpack(data)
        except (BrokenArtifact, MalformedBody) as error:
            raise UnusableTrajectory(f"{trajectory.trajectory_id}: {error}") from error
        return wire.tokens_from_body(body, trajectory, train_parse_errors=self._train_parse_errors)


class BlobStates:
    """See ports.States."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._checkpoints: dict[str, frozenset[str]] = {}

    async def find(self) -> FoundStates:
        """See ports.States."""
        newest: dict[str, str] = {}
        stopped: set[str] = set()
        closed: set[str] = set()
        with object_store("training states"):
            keys = await self._store.list(f"{_ROOT}/")
        for key in keys:
            folder, _, name = key.rpartition("/")
            if name == _STOPPED:
                stopped.add(folder)
            elif name == _CLOSED:
                closed.add(folder)
            elif name == _MARKER:
                run = folder.rpartition("/")[0]
                newest[run] = max(key, newest.get(run, ""))
        states, broken = [], {}
        for run, key in sorted(newest.items()):
            try:
                state = await self._read(key)
                states.append(replace(state, finished=run in closed, stopped=run in stopped))
            except BrokenArtifact as error:
                broken[unquote(run.rpartition("/")[2])] = str(error)
        return FoundStates(tuple(states), broken)

    async def _read(self, key: str) -> SessionState:
        with object_store(key):
            data = await self._store.read(key)
        if data is None:
            raise BrokenArtifact(f"{key} was listed and is gone: who deletes the states of this run?")
        try:
            return state_from_json(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArtifact(f"{key} is no training state that this trainer reads: {error}") from error

    async def commit(self, state: SessionState, tensors: Path | None) -> SessionState:
        """See ports.States."""
        folder = _folder(state.spec.model, state.spec.run_id, state.step)
        with object_store(f"step {state.step} of {state.spec.run_id}"):
            if tensors is not None:
                state = replace(state, tensors=await self._put(folder, tensors))
            marker = await self._store.put_if_absent(f"{folder}/{_MARKER}", _marker_bytes(state))
        if marker is None:
            raise LineageTaken(
                f"step {state.step} of {state.spec.run_id} is already written with another content: "
                "two trainers work on one run; stop one of them"
            )
        return state

    async def _put(self, folder: str, tensors: Path) -> tuple[StoredBody, ...]:
        """The content is in the keys: another trainer's files cannot clobber these."""
        shas = await asyncio.to_thread(lambda: {file: _sha256(file) for file in sorted(tensors.iterdir())})
        whole = hashlib.sha256("".join(shas.values()).encode()).hexdigest()[:16]
        refs = [await self._store.put_file(f"{folder}/{whole}/{file.name}", file) for file in shas]
        return tuple(wire.stored(ref) for ref in refs)

    async def tensors(self, state: SessionState, directory: Path) -> None:
        """See ports.States."""
        if not state.tensors:
            raise ValueError(f"step {state.step} of {state.spec.run_id} has no tensors: it is the base")
        with object_store(f"tensors of step {state.step} of {state.spec.run_id}"):
            for file in state.tensors:
                await self._store.get_file(wire.blob_ref(file), directory / file.key.rpartition("/")[2])

    async def marker_of(self, state: SessionState) -> StoredBody:
        """See ports.States."""
        data = _marker_bytes(state)
        key = f"{_folder(state.spec.model, state.spec.run_id, state.step)}/{_MARKER}"
        return StoredBody(key, hashlib.sha256(data).hexdigest(), len(data))

    async def stop(self, state: SessionState) -> None:
        """See ports.States."""
        with object_store(f"the early end of {state.spec.run_id}"):
            await self._store.put(
                f"{_run_folder(state)}/{_STOPPED}", json.dumps({"step": state.step}).encode()
            )

    async def close(self, state: SessionState) -> None:
        """See ports.States."""
        with object_store(f"the end of {state.spec.run_id}"):
            await self._store.put(
                f"{_run_folder(state)}/{_CLOSED}", json.dumps({"seen": state.seen}).encode()
            )
        await self.prune(state.spec.run_id, state.spec.model, newest=1)

    async def prune(self, run_id: str, model: str, *, newest: int) -> None:
        """See ports.States."""
        run = _folder(model, run_id, 0).rpartition("/")[0]
        folders: dict[str, list[str]] = {}
        with object_store(f"old states of {run_id}"):
            for key in await self._store.list(f"{run}/step-"):
                folders.setdefault(f"{run}/{key.removeprefix(run).split('/')[1]}", []).append(key)
            for folder in sorted(folders)[:-newest]:
                named = await self._named(folder)
                # The marker goes first: a state is whole or it is not there.
                gone = sorted(set(folders[folder]) - named, key=lambda key: (not key.endswith(_MARKER), key))
                for key in gone:
                    await self._store.delete(key)
                if not named:
                    STATES_REMOVED.labels(model).inc()

    async def _named(self, folder: str) -> frozenset[str]:
        """Objects of a state that a checkpoint names; what else lies there was left by an attempt that was
        cut off. Remembered, because markers never change."""
        marker = f"{folder}/{_MARKER}"
        if folder not in self._checkpoints and await self._store.read(marker) is not None:
            state = await self._read(marker)
            if state.last_step is not None and state.last_step.saves_checkpoint:
                self._checkpoints[folder] = frozenset({marker, *(file.key for file in state.tensors)})
        return self._checkpoints.get(folder, frozenset())


def _folder(model: str, run_id: str, step: int) -> str:
    return f"{_ROOT}/{quote(model, safe='')}/{quote(run_id, safe='')}/step-{step:08d}"


def _run_folder(state: SessionState) -> str:
    return _folder(state.spec.model, state.spec.run_id, state.step).rpartition("/")[0]


def _marker_bytes(state: SessionState) -> bytes:
    return json.dumps(state.to_json(), sort_keys=True, separators=(",", ":")).encode()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
