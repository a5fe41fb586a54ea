"""Bodies and training states in the object store.

States are step folders (see step_folders) in the run's folder `<tenant>/training/<model>/<run>/`; beside
them `stopped.json`, `failed.json` and `closed.json` say how far the run itself is, and `attempts.json` which
batch was begun last.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from blob_store import BlobStore
from episodes import SessionFailure
from grpo_trainer import wire
from grpo_trainer.adapters import step_folders
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.adapters.step_folders import Claim, StepStates, markers
from grpo_trainer.domain.errors import BrokenArtifact, UnusableTrajectory
from grpo_trainer.domain.failures import BrokenRun, FailedRun, Failure, failure_from_json
from grpo_trainer.domain.states import SessionState, state_from_json
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.domain.trajectories import GradedTrajectory
from grpo_trainer.holding import HeldModel
from grpo_trainer.runs.attempt_record import Attempt, attempt_from_json
from grpo_trainer.telemetry import STATES_REMOVED
from identities.objects import (
    parse_converted_state,
    parse_training_run,
    parse_training_step,
    training_run,
    training_states,
)
from trajectory_body import MalformedBody, unpack

log = logging.getLogger(__name__)

_STOPPED: Final = "stopped.json"
_CLOSED: Final = "closed.json"
_FAILED: Final = "failed.json"
_ATTEMPTS: Final = "attempts.json"


class BlobBodies:
    """Stored trajectories."""

    def __init__(self, store: BlobStore, *, train_parse_errors: bool) -> None:
        self._store = store
        self._train_parse_errors = train_parse_errors

    async def tokens(self, trajectory: GradedTrajectory) -> EpisodeTokens:
        """Unpacked in a thread: long bodies would stop the event loop. Raises UnusableTrajectory,
        Unavailable."""
        try:
            with object_store(trajectory.trajectory_id):
                data = await self._store.get(trajectory.body)
            return await asyncio.to_thread(self._unpacked, data, trajectory)
        except (BrokenArtifact, MalformedBody) as error:
            raise UnusableTrajectory(f"{trajectory.trajectory_id}: {error}") from error

    def _unpacked(self, data: bytes, trajectory: GradedTrajectory) -> EpisodeTokens:
        body = unpack(data)
        return wire.tokens_from_body(body, trajectory, train_parse_errors=self._train_parse_errors)


class BlobStates(StepStates[SessionState]):
    """Durable states of runs, and what is known of each run beside them."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, _line_of, state_from_json)
        self._known: dict[str, tuple[AbstractSet[str], AbstractSet[str]]] = {}

    async def open_runs(self) -> list[tuple[str, str]]:
        """Model and id of every run that has a folder and is not over, by one listing."""
        with object_store("training states"):
            runs = _by_run(await self._store.list(training_states()))
        found = [parse_training_run(line) for line in sorted(runs) if _CLOSED not in runs[line]]
        return [(one.model, one.run_id) for one in found]

    async def find_run(self, model: str, run_id: str) -> SessionState | BrokenRun | FailedRun | None:
        """A run by what is in its folder; None where nothing durable is there."""
        line = training_run(model, run_id)
        with object_store(f"training states of {run_id}"):
            keys = await self._store.list(f"{line}/")
        known, names = markers(keys), {key.removeprefix(f"{line}/") for key in keys}
        closed, state, failure = _CLOSED in names, None, None
        why = "the run is over, and none of its states is there" if closed and not known else ""
        try:
            state, claim = await self.newest_of(known)
            if claim is not None and claim.failure is not None:
                failure = failure_from_json(claim.failure)
            if state is not None:
                state = replace(state, finished=closed, stopped=_STOPPED in names)
        except BrokenArtifact as error:
            why = str(error)
        if _FAILED in names:
            failure = await self._failure(line)
        if failure is not None:
            return FailedRun(failure, state, closed)
        step = parse_training_step(known[-1]) if known else None
        return BrokenRun(run_id, model, step.step if step else 0, why, closed) if why else state

    async def newest_two(self, model: str, run_id: str) -> tuple[SessionState | None, SessionState | None]:
        """The newest state of a run, and that of a step before it; None where there is none. Raises
        BrokenArtifact."""
        with object_store(f"training states of {run_id}"):
            known = markers(await self._store.list(f"{training_run(model, run_id)}/"))
        newest, _ = await self.newest_of(known)
        if newest is None:
            return None, None
        before, _ = await self.newest_of(_up_to(known, newest.step - 1))
        return newest, before

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

    async def claim_failed(self, failure: Failure, held: HeldModel) -> None:
        """End the markers of a run with its failure. Raises LineageTaken where another trainer has the run.
        Where they cannot be read, there is nothing that another trainer could go on with."""
        line = training_run(failure.model, failure.run_id)
        try:
            await self.claim(line, token=held.token, by=held.holder, failure=failure.to_json())
        except BrokenArtifact as error:
            log.warning("failure_not_claimed", extra={"line": line, "error": str(error)})

    async def claim_again(self, state: SessionState, held: HeldModel) -> None:
        """Be sure that no other trainer has the run. Raises LineageTaken."""
        await self.claim(_line_of(state), token=held.token, by=held.holder)

    async def record_stop(self, state: SessionState, held: HeldModel) -> None:
        """Remember that the run ends early, with this state. Raises LineageTaken."""
        await self.claim_again(state, held)
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
        await self.close(state.spec.model, state.spec.run_id, state.seen)

    async def record_failed_end(self, failure: Failure) -> None:
        """As `record_end`, of a run that failed, with or without a state."""
        await self.close(failure.model, failure.run_id, failure.cursor)

    async def close(self, model: str, run_id: str, seen: int = 0) -> None:
        """As `record_end`, of a run that may have no state."""
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
        """Delete old states, except the `newest` and those that a checkpoint names. Claims stay until the run
        is over: each lies where a trainer that lost the run would write. is_over: what a kill left of a newer
        state goes too."""
        with object_store(f"old states of {run_id}"):
            keys = await self._store.list(f"{training_run(model, run_id)}/")
            known = markers(keys)
            if (
                is_over
                and (ended_at := await self._stopped_at(training_run(model, run_id), keys)) is not None
            ):
                known = _up_to(known, ended_at)
            folders, last = step_folders.by_folder(keys), await self._newest_marker(known)
            for folder in step_folders.old(folders, last, newest=newest, is_over=is_over):
                named, claims = await self._kept(folder, folders[folder])
                gone = set(folders[folder]) - named - (set() if is_over else claims)
                await step_folders.delete(self._store, gone)
                if gone.issuperset(folders[folder]):
                    self._forget(folder)
                if markers(gone):
                    STATES_REMOVED.labels(model).inc()
            if is_over:
                for folder in folders:
                    self._known.pop(folder, None)

    def _forget(self, folder: str) -> None:
        """A state that is gone."""
        self._numbers.pop(folder, None)
        self._known.pop(folder, None)

    async def _stopped_at(self, line: str, keys: Collection[str]) -> int | None:
        """The step of the state with which a run ended early; None where it did not, or nothing can be
        read."""
        key = f"{line}/{_STOPPED}"
        if key not in keys:
            return None
        try:
            return int(json.loads(await self._store.read(key) or b"")["step"])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("early_end_unreadable", extra={"key": key, "error": str(error)})
            return None

    async def _kept(self, folder: str, keys: Collection[str]) -> tuple[AbstractSet[str], AbstractSet[str]]:
        """The objects of a state that a checkpoint refers to, and the claims, each with its signature; others
        in the folder were left by a trainer that was killed. What markers say is kept, because they never
        change; an operator may sign them later. All of them where a marker cannot be read: another trainer is
        deleting it, or another version of this program wrote it. With a state that was converted stays what
        lies beside it.
        """
        if folder not in self._known:
            named, claims = set[str](), set[str]()
            for marker in markers(keys):
                try:
                    state = await self._read_marker(marker)
                except BrokenArtifact as error:
                    log.warning("old_state_unreadable", extra={"key": marker, "error": str(error)})
                    return set(keys), set()
                if isinstance(state, Claim):
                    claims.add(marker)
                elif state.last_step is not None and state.last_step.saves_checkpoint:
                    named |= {marker, *(file.key for file in state.tensors)}
            self._known[folder] = named, claims
        if self._known[folder][0] and any(map(parse_converted_state, keys)):
            return set(keys), set()
        kept, claimed = (one | step_folders.signatures(one, keys) for one in self._known[folder])
        return kept, claimed


def _by_run(keys: Iterable[str]) -> dict[str, set[str]]:
    """Names of the objects in the folder of each run, by folder."""
    runs: dict[str, set[str]] = {}
    for key in keys:
        folder = training_run(*parse_training_run(key))
        if key.startswith(f"{folder}/"):
            runs.setdefault(folder, set()).add(key.removeprefix(f"{folder}/"))
    return runs


def _up_to(known: Iterable[str], step: int) -> list[str]:
    """The markers of the steps up to this one."""
    return [key for key in known if (found := parse_training_step(key)) is not None and found.step <= step]


def _line_of(state: SessionState) -> str:
    return training_run(state.spec.model, state.spec.run_id)
