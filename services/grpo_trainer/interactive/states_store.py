"""Durable states of interactive sessions: step folders (see step_folders) below the folder of the model."""

from __future__ import annotations

import json

from blob_store import BlobStore
from grpo_trainer.adapters import step_folders
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.step_folders import Claim, StepStates, markers
from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.domain.states import SessionState
from grpo_trainer.interactive.state import InteractiveState, interactive_state_from_json
from identities import objects


class InteractiveStates(StepStates[InteractiveState]):
    """Durable states of the interactive sessions."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, _line_of, interactive_state_from_json, first_step=1)

    async def models(self) -> tuple[str, ...]:
        """Models of which a state is kept, sorted."""
        with object_store("states of interactive training"):
            keys = await self._store.list(objects.interactive_states())
        return tuple(sorted(set(map(objects.parse_interactive_session, markers(keys)))))

    async def newest(self, model: str) -> InteractiveState | None:
        """The newest state; None if there is none. Raises BrokenArtifact."""
        state, _ = await self.newest_of(await self._markers(model))
        return state

    async def of_version(self, model: str, version: int) -> InteractiveState | None:
        """The kept state whose step produced a version; None if there is none."""
        for key in reversed(await self._markers(model)):
            state = await self._read_marker(key)
            if isinstance(state, Claim):
                continue
            if state.session.version <= version:
                return state if state.session.version == version else None
        return None

    async def prune(self, model: str, *, newest: int) -> None:
        """Delete all states but the newest ones."""
        with object_store(f"old states of {model}"):
            keys = await self._store.list(f"{objects.interactive_session(model)}/")
            folders, last = step_folders.by_folder(keys), await self._newest_marker(markers(keys))
            for folder in step_folders.old(folders, last, newest=newest):
                await step_folders.delete(self._store, folders[folder])

    async def note_unsaved(self, model: str, step: int) -> None:
        """Store that the steps up to this one are in a trainer's memory only, instead of the note before."""
        key = objects.interactive_unsaved(model)
        with object_store(key):
            await self._store.put(key, json.dumps({"step": step}).encode())

    async def unsaved(self, model: str) -> int | None:
        """The step of the note; None if there is none. Raises BrokenArtifact."""
        key = objects.interactive_unsaved(model)
        with object_store(key):
            data = await self._store.read(key)
        if data is None:
            return None
        try:
            return int(json.loads(data)["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArtifact(f"{key} is no note about unsaved steps: {error}") from error

    async def forget_unsaved(self, model: str) -> None:
        """Remove the note."""
        key = objects.interactive_unsaved(model)
        with object_store(key):
            await self._store.delete(key)

    async def _markers(self, model: str) -> list[str]:
        with object_store(f"states of {model}"):
            keys = await self._store.list(f"{objects.interactive_session(model)}/")
        return markers(keys)


def _line_of(session: SessionState) -> str:
    return objects.interactive_session(session.spec.model)
