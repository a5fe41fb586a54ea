"""Bodies and training states in the object store.

States are step folders (see step_folders) in the run's folder `<tenant>/training/<model>/<run>/`; beside
them `stopped.json`, `failed.json` and `closed.json` say how far the run itself is, and `attempts.json` which
batch was begun last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from blob_store import BlobStore
from episodes import SessionFailure
from grpo_trainer import wire
from grpo_trainer.adapters import step_folders
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.step_folders import MARKER, StepStates
from grpo_trainer.domain.errors import BrokenArtifact, UnusableTrajectory
from grpo_trainer.domain.failures import BrokenRun, FailedRun, Failure, failure_from_json
from grpo_trainer.domain.states import SessionState, state_from_json
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.domain.trajectories import GradedTrajectory
from grpo_trainer.runs.attempt_record import Attempt, attempt_from_json
from grpo_trainer.telemetry import STATES_REMOVED
from identities.objects import parse_training_run, parse_training_step, training_run, training_states
from trajectory_body import MalformedBody, unpack

log = logging.getLogger(__name__)

_STOPPED: Final = "stopped.json"
_CLOSED: Final = "closed.json"
_FAILED: Final = "failed.json"
_ATTEMPTS: Final = "attempts.json"


@dataclass(frozen=True, slots=True)
class FoundStates:
    """states: of runs that did not fail. broken: runs whose newest state cannot be read. failed: runs that
    are known to have failed."""

    states: tuple[SessionState, ...] = ()
    broken: tuple[BrokenRun, ...] = ()
    failed: tuple[FailedRun, ...] = ()


class BlobBodies:
    """Stored trajectories."""

    def __init__(self, store: BlobStore, *, train_parse_errors: bool) -> None:
        self._store = store
        self._train_parse_errors = train_parse_errors

    async def tokens(self, trajectory: GradedTrajectory) -> EpisodeTokens:
        """Raises UnusableTrajectory, Unavailable."""
        try:
            with object_store(trajectory.trajectory_id):
                data = await self._store.get(trajectory.body)
            body = unpack(data)
        except (BrokenArtifact, MalformedBody) as error:
            raise UnusableTrajectory(f"{trajectory.trajectory_id}: {error}") from error
        return wire.tokens_from_body(body, trajectory, train_parse_errors=self._train_parse_errors)


class BlobStates(StepStates[SessionState]):
    """Durable states of runs, and what is known of each run beside them."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, _line_of, state_from_json)
        self._checkpoints: dict[str, frozenset[str]] = {}

    async def find(self) -> FoundStates:
        """The newest state of every run, finished ones included."""
        return await self._found(training_states(), "training states")

    async def find_run(self, model: str, run_id: str) -> FoundStates:
        """As `find`, of one run."""
        return await self._found(f"{training_run(model, run_id)}/", f"training states of {run_id}")

    async def _found(self, prefix: str, what: str) -> FoundStates:
        with object_store(what):
            keys = await self._store.list(prefix)
        found = [await self._looked_up(line, names) for line, names in sorted(_by_run(keys).items())]
        return FoundStates(
            tuple(one for one in found if isinstance(one, SessionState)),
            tuple(one for one in found if isinstance(one, BrokenRun)),
            tuple(one for one in found if isinstance(one, FailedRun)),
        )

    async def _looked_up(
        self, line: str, names: Collection[str]
    ) -> SessionState | BrokenRun | FailedRun | None:
        """A run by the objects in its folder; None where nothing durable is there."""
        newest = max((name for name in names if name.endswith(f"/{MARKER}")), default="")
        closed, state = _CLOSED in names, None
        why = "the run is over, and none of its states is there" if closed and not newest else ""
        if newest:
            try:
                state = await self.read(f"{line}/{newest}")
                state = replace(state, finished=closed, stopped=_STOPPED in names)
            except BrokenArtifact as error:
                why = str(error)
        if _FAILED in names:
            return FailedRun(await self._failure(line), state, closed)
        if not why:
            return state
        model, run_id = parse_training_run(line)
        found = parse_training_step(f"{line}/{newest}")
        return BrokenRun(run_id, model, found.step if found else 0, why, closed)

    async def _failure(self, line: str) -> Failure:
        """The stored failure of a run; a general one if the record cannot be read."""
        key = f"{line}/{_FAILED}"
        with object_store(key):
            data = await self._store.read(key)
        try:
            return failure_from_json(json.loads(data or b""))
        except (ValueError, KeyError, TypeError) as error:
            log.error("failure_unreadable", extra={"key": key, "error": str(error)})
            model, run_id = parse_training_run(line)
            detail = f"the run failed, and the record of its failure, {key}, cannot be read: {error}"
            return Failure(run_id, model, SessionFailure.ERROR, detail, 0, 0, datetime.fromtimestamp(0, UTC))

    async def record_stop(self, state: SessionState) -> None:
        """Remember that the run ends early, with this state."""
        with object_store(f"the early end of {state.spec.run_id}"):
            await self._store.put(f"{_line_of(state)}/{_STOPPED}", json.dumps({"step": state.step}).encode())

    async def record_failure(self, failure: Failure) -> Failure:
        """Remember that the run failed; returns what is remembered, the first failure of the run."""
        line = training_run(failure.model, failure.run_id)
        data = json.dumps(failure.to_json(), sort_keys=True).encode()
        with object_store(f"the failure of {failure.run_id}"):
            written = await self._store.put_if_absent(f"{line}/{_FAILED}", data)
        return failure if written is not None else await self._failure(line)

    async def record_end(self, state: SessionState) -> None:
        """Remember that the run is over; of its states, the newest and those that a checkpoint names stay."""
        await self._record_end(state.spec.model, state.spec.run_id, state.seen)

    async def record_failed_end(self, failure: Failure) -> None:
        """As `record_end`, of a run that failed, with or without a state."""
        await self._record_end(failure.model, failure.run_id, failure.cursor)

    async def _record_end(self, model: str, run_id: str, seen: int) -> None:
        line = training_run(model, run_id)
        with object_store(f"the end of {run_id}"):
            await self._store.put(f"{line}/{_CLOSED}", json.dumps({"seen": seen}).encode())
            await self._store.delete(f"{line}/{_ATTEMPTS}")
        await self.prune(run_id, model, newest=1, is_over=True)

    async def attempt(self, model: str, run_id: str) -> Attempt | None:
        """The batch that was begun last; None where nothing is recorded, or nothing that can be read."""
        key = f"{training_run(model, run_id)}/{_ATTEMPTS}"
        with object_store(f"attempts of {run_id}"):
            data = await self._store.read(key)
        if data is None:
            return None
        try:
            return attempt_from_json(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("attempts_unreadable", extra={"key": key, "error": str(error)})
            return None

    async def note_attempt(self, model: str, run_id: str, attempt: Attempt) -> None:
        """Record which batch is begun, or that it was computed."""
        data = json.dumps(attempt.to_json()).encode()
        with object_store(f"attempts of {run_id}"):
            await self._store.put(f"{training_run(model, run_id)}/{_ATTEMPTS}", data)

    async def prune(self, run_id: str, model: str, *, newest: int, is_over: bool = False) -> None:
        """Delete old states, except the `newest` and those that a checkpoint names. is_over: what a kill left
        of a newer one, too."""
        with object_store(f"old states of {run_id}"):
            folders = step_folders.by_folder(await self._store.list(f"{training_run(model, run_id)}/"))
            for folder in step_folders.old(folders, newest=newest, is_over=is_over):
                named = await self._named(folder, folders[folder])
                await step_folders.delete(self._store, set(folders[folder]) - named)
                if not named:
                    STATES_REMOVED.labels(model).inc()

    async def _named(self, folder: str, keys: Collection[str]) -> frozenset[str]:
        """The objects of a state that a checkpoint refers to; others in its folder were left by a trainer
        that was killed. The answer is kept, because markers never change. All of them where the marker cannot
        be read: another trainer is deleting it, or another version of this program wrote it.
        """
        marker = f"{folder}/{MARKER}"
        if folder not in self._checkpoints and marker in keys:
            try:
                state = await self.read(marker)
            except BrokenArtifact as error:
                log.warning("old_state_unreadable", extra={"key": marker, "error": str(error)})
                return frozenset(keys)
            if state.last_step is not None and state.last_step.saves_checkpoint:
                self._checkpoints[folder] = frozenset({marker, *(file.key for file in state.tensors)})
        return self._checkpoints.get(folder, frozenset())


def _by_run(keys: Iterable[str]) -> dict[str, set[str]]:
    """Names of the objects in the folder of each run, by folder."""
    runs: dict[str, set[str]] = {}
    for key in keys:
        folder = training_run(*parse_training_run(key))
        if key.startswith(f"{folder}/"):
            runs.setdefault(folder, set()).add(key.removeprefix(f"{folder}/"))
    return runs


def _line_of(state: SessionState) -> str:
    return training_run(state.spec.model, state.spec.run_id)
