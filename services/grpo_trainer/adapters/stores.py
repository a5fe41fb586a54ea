"""Bodies and training states in the object store.

States are step folders (see step_folders) below `training/<model>/<run>/`; beside them `stopped.json` and
`closed.json` say how far the run itself is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from blob_store import BlobStore
from grpo_trainer import wire
from grpo_trainer.adapters import step_folders
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.step_folders import MARKER, step_folder
from grpo_trainer.adapters.telemetry import STATES_REMOVED
from grpo_trainer.domain.contexts import EpisodeTokens
from grpo_trainer.domain.errors import BrokenArtifact, UnusableTrajectory
from grpo_trainer.domain.states import SessionState, state_from_json
from grpo_trainer.domain.trajectories import GradedTrajectory, StoredBody
from grpo_trainer.ports import FoundStates
from trajectory_body import MalformedBody, unpack

_ROOT: Final = "training"
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
            elif name == MARKER:
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
        return await step_folders.read_marker(self._store, key, state_from_json)

    async def commit(self, state: SessionState, tensors: Path | None) -> SessionState:
        """See ports.States."""
        folder = _folder(state)
        with object_store(f"step {state.step} of {state.spec.run_id}"):
            if tensors is not None:
                files = await step_folders.put_tensors(self._store, folder, tensors)
                state = replace(state, tensors=files)
            await step_folders.put_marker(self._store, folder, state.to_json())
        return state

    async def tensors(self, state: SessionState, directory: Path) -> None:
        """See ports.States."""
        if not state.tensors:
            raise ValueError(f"step {state.step} of {state.spec.run_id} has no tensors: it is the base")
        with object_store(f"tensors of step {state.step} of {state.spec.run_id}"):
            await step_folders.get_tensors(self._store, state.tensors, directory)

    async def marker_of(self, state: SessionState) -> StoredBody:
        """See ports.States."""
        return step_folders.marker_of(_folder(state), state.to_json())

    async def stop(self, state: SessionState) -> None:
        """See ports.States."""
        with object_store(f"the early end of {state.spec.run_id}"):
            await self._store.put(f"{_line_of(state)}/{_STOPPED}", json.dumps({"step": state.step}).encode())

    async def close(self, state: SessionState) -> None:
        """See ports.States."""
        with object_store(f"the end of {state.spec.run_id}"):
            await self._store.put(f"{_line_of(state)}/{_CLOSED}", json.dumps({"seen": state.seen}).encode())
        await self.prune(state.spec.run_id, state.spec.model, newest=1)

    async def prune(self, run_id: str, model: str, *, newest: int) -> None:
        """See ports.States."""
        with object_store(f"old states of {run_id}"):
            folders = step_folders.by_folder(await self._store.list(f"{_line(model, run_id)}/step-"))
            for folder in list(folders)[:-newest]:
                named = await self._named(folder, folders[folder])
                await step_folders.delete(self._store, set(folders[folder]) - named)
                if not named:
                    STATES_REMOVED.labels(model).inc()

    async def _named(self, folder: str, keys: Collection[str]) -> frozenset[str]:
        """Objects of a state that a checkpoint names; what else lies there was left by an attempt that was
        cut off. Remembered, because markers never change."""
        marker = f"{folder}/{MARKER}"
        if folder not in self._checkpoints and marker in keys:
            state = await self._read(marker)
            if state.last_step is not None and state.last_step.saves_checkpoint:
                self._checkpoints[folder] = frozenset({marker, *(file.key for file in state.tensors)})
        return self._checkpoints.get(folder, frozenset())


def _line(model: str, run_id: str) -> str:
    return f"{_ROOT}/{quote(model, safe='')}/{quote(run_id, safe='')}"


def _line_of(state: SessionState) -> str:
    return _line(state.spec.model, state.spec.run_id)


def _folder(state: SessionState) -> str:
    return step_folder(_line_of(state), state.step)
