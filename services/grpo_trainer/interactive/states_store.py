"""Durable states of interactive sessions: step folders (see step_folders) below the folder of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blob_store import BlobRef, BlobStore
from grpo_trainer.adapters import step_folders
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.step_folders import MARKER, step_folder
from grpo_trainer.interactive.state import InteractiveState, interactive_state_from_json
from identities import objects


class InteractiveStates:
    """Reads and writes states; a state exists once its marker does."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def models(self) -> tuple[str, ...]:
        """Models of which a state is kept, sorted."""
        with object_store("states of interactive training"):
            keys = await self._store.list(objects.interactive_states())
        markers = (key for key in keys if key.endswith(f"/{MARKER}"))
        return tuple(sorted(set(map(objects.parse_interactive_session, markers))))

    async def newest(self, model: str) -> InteractiveState | None:
        """The newest state; None if there is none. Raises BrokenArtifact."""
        markers = await self._markers(model)
        return await self._read(markers[-1]) if markers else None

    async def of_version(self, model: str, version: int) -> InteractiveState | None:
        """The kept state whose step produced a version; None if there is none."""
        for key in reversed(await self._markers(model)):
            state = await self._read(key)
            if state.session.version <= version:
                return state if state.session.version == version else None
        return None

    async def commit(self, state: InteractiveState, tensors: Path) -> InteractiveState:
        """Write the tensors, then the marker. Raises LineageTaken if another trainer wrote this marker."""
        session, folder = state.session, _folder(state)
        with object_store(f"step {session.step} of {session.spec.model}"):
            files = await step_folders.put_tensors(self._store, folder, tensors)
            state = replace(state, session=replace(session, tensors=files))
            await step_folders.put_marker(self._store, folder, state.to_json())
        return state

    async def tensors(self, state: InteractiveState, path: Path) -> None:
        """Fetch the tensors of a state into an empty folder."""
        with object_store(f"tensors of step {state.session.step} of {state.session.spec.model}"):
            await step_folders.get_tensors(self._store, state.session.tensors, path)

    def marker_of(self, state: InteractiveState) -> BlobRef:
        """The claim check of the marker of a committed state."""
        return step_folders.marker_of(_folder(state), state.to_json())

    async def prune(self, model: str, *, newest: int) -> None:
        """Delete all states but the newest ones."""
        with object_store(f"old states of {model}"):
            folders = step_folders.by_folder(await self._store.list(f"{objects.interactive_session(model)}/"))
            for folder in list(folders)[:-newest]:
                await step_folders.delete(self._store, folders[folder])

    async def _markers(self, model: str) -> list[str]:
        with object_store(f"states of {model}"):
            keys = await self._store.list(f"{objects.interactive_session(model)}/")
        return sorted(key for key in keys if key.endswith(f"/{MARKER}"))

    async def _read(self, key: str) -> InteractiveState:
        return await step_folders.read_marker(self._store, key, interactive_state_from_json)


def _folder(state: InteractiveState) -> str:
    return step_folder(objects.interactive_session(state.session.spec.model), state.session.step)
