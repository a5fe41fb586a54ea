"""All training sessions of this process: resumes them from their states, opens one for each submitted run,
and gives each its facts in stream order.

An error of a session ends its own run, by the event session.failed, and no other run. Two errors end the
process instead: a lost rank, and a service or store that was unavailable for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from episodes import SessionFailure
from grpo_trainer.domain.alarms import AlarmLimits
from grpo_trainer.domain.errors import BrokenArtifact, InvalidTrainingSpec, UnknownSession
from grpo_trainer.domain.failures import ENDS_PROCESS, BrokenRun, FailedRun, Failure, detail_of, kind_of
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.domain.trajectories import Submission
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.failing import Failures
from grpo_trainer.runs.group_buffer import Fact, RunOver
from grpo_trainer.runs.reopening import Interim, ReadAgain, feed, hand_over, may_go_on, newest_of
from grpo_trainer.runs.session import TrainingSession
from grpo_trainer.runs.stores import FoundStates
from grpo_trainer.runs.watermark import ReplayWatermark
from service_kit.errors import as_errors

log = logging.getLogger(__name__)

_LAST_MOMENT_S: Final = 1.0
"""How long abandoned sessions may take to end; a learner that computes a step cannot be interrupted."""
_OF_LEAVING: Final = (SessionFailure.ERROR, SessionFailure.LINEAGE_TAKEN)
"""Errors that a stopping process may cause itself: they fail no run while it stops. A real one occurs again.
"""


class RunSessions:
    """Routes each fact to its run. Runs that this trainer does not train are ignored."""

    def __init__(
        self,
        deps: RunDeps,
        read_again: ReadAgain,
        *,
        leave_s: float = 15.0,
        leases: ModelLeases | None = None,
    ) -> None:
        """read_again: for runs that are opened again. leave_s: how long `stop` waits for steps under way to
        become durable; then they are abandoned. leases: shared with interactive training, if there is any."""
        self._deps = deps
        self._leave_s = leave_s
        self._leases = leases or ModelLeases()
        self._stopping = False
        self.watermark = ReplayWatermark()
        self.retry = RetryUntilAvailable()
        self.read_again = read_again
        self.failures = Failures(deps, self.watermark, self._spawn)
        self._interim = Interim()
        self._sessions: dict[str, TrainingSession] = {}
        self._past: dict[str, SessionState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

    async def restore(self) -> int:
        """Resume every run that is not over and did not fail. Returns the sequence after which facts must be
        replayed."""
        found = await self.retry.until_available(self._deps.states.find)
        going = [state for state in found.states if not state.finished]
        self._past = {state.spec.run_id: state for state in found.states if state.finished}
        self.watermark.handled = _replayed_after(found)
        for run in (*found.failed, *map(self._broken, found.broken)):
            self._know(run)
        for state in going:
            submission = Submission(state.spec, state.cursor, state.trace_headers)
            self._start(self._new(submission, state))
        self._leases.runs_are_known()
        return self.watermark.handled

    def _know(self, run: FailedRun) -> None:
        """Take note of a failed run that has no session here; publish its failure if that is open."""
        run_id = run.failure.run_id
        self.failures.add(run)
        if not run.closed:
            self._spawn(f"failing/{run_id}", self.failures.record_and_publish(run_id))

    def _broken(self, run: BrokenRun) -> FailedRun:
        log.error("training_failed", extra={"run_id": run.run_id, "error": run.detail})
        error, cursor = BrokenArtifact(run.detail), self.watermark.handled
        failure = self._failure(run.run_id, run.model, error, step=run.step, cursor=cursor)
        return FailedRun(failure, closed=run.closed)

    def submit(self, spec: TrainingSpec, sequence: int, trace_headers: Mapping[str, str]) -> None:
        """A training run was submitted; repeated submissions change nothing."""
        if self._knows(spec.run_id):
            return
        self.watermark.opening(spec.run_id, sequence)
        self._start(self._new(Submission(spec, sequence, trace_headers)))

    def _knows(self, run_id: str) -> bool:
        return run_id in self._sessions or run_id in self._past or run_id in self.failures

    def _new(self, submission: Submission, state: SessionState | None = None) -> TrainingSession:
        lease = self._leases.queue_run(submission.spec.model, submission.spec.run_id)
        return TrainingSession(submission, self._deps, self.watermark, state, lease=lease)

    def refuse(self, run_id: str, model: str, sequence: int, error: InvalidTrainingSpec) -> None:
        """Fail a run that was submitted at `sequence` with a configuration that this trainer refuses."""
        if self._knows(run_id):
            return
        log.error("training_refused", extra={"run_id": run_id, "error": str(error)})
        self.watermark.opening(run_id, sequence)  # until the failure is durable
        self._know(FailedRun(self._failure(run_id, model, error, step=0, cursor=sequence)))

    def _failure(self, run_id: str, model: str, error: Exception, *, step: int, cursor: int) -> Failure:
        return Failure(
            run_id=run_id,
            model=model,
            kind=kind_of(error),
            detail=detail_of(error),
            step=step,
            cursor=min(cursor, self.watermark.bound),
            failed_at=self._deps.now(),
        )

    def put(self, run_id: str, fact: Fact) -> None:
        """A fact about a run, in stream order."""
        session = self._sessions.get(run_id)
        if run_id in self.failures:
            if isinstance(fact, RunOver):
                self.failures.over(run_id)
        elif session is not None and not self._interim.put(run_id, fact):
            session.put(fact)

    def handled(self, sequence: int) -> None:
        """Every fact up to `sequence` has reached its session."""
        self.watermark.handled = max(self.watermark.handled, sequence)

    def _start(self, session: TrainingSession) -> None:
        self._sessions[session.spec.run_id] = session
        self._spawn(session.spec.run_id, self._to_its_end(session), prefix="session/")

    def _spawn(self, name: str, work: Coroutine[Any, Any, None], *, prefix: str = "") -> None:
        task = asyncio.create_task(_as_errors(work), name=f"{prefix}{name}")
        self._tasks[name] = task
        task.add_done_callback(self._ended.put_nowait)

    async def _to_its_end(self, session: TrainingSession | None) -> None:
        """Run a session, and the sessions that replace it, until the run is over or has failed."""
        while session is not None:
            try:
                error = await _end_of(session)
                following = None if error is None else await self._following(session, error)
            finally:
                await session.close()
            session = following

    async def _following(self, session: TrainingSession, error: Exception) -> TrainingSession | None:
        """The session that replaces `session`, which `error` ended; None if its run is over or has failed."""
        if self._stopping and kind_of(error) in _OF_LEAVING:
            log.warning("session_left", exc_info=error, extra={"run_id": session.spec.run_id})
            return None
        try:
            return await self._gone_on(session, error)
        except ENDS_PROCESS:
            raise
        except BrokenArtifact:  # the stored state cannot be read: the session's own error explains more
            await self._fail(session, error)
        except Exception as unexpected:
            await self._fail(session, unexpected)
        return None

    async def _gone_on(self, session: TrainingSession, error: Exception) -> TrainingSession | None:
        """Look the run up in the store: another trainer may have failed, finished or continued it."""
        newest = await newest_of(session.spec, self._deps)
        if isinstance(newest, FailedRun):
            await self._end_failed(session, newest)
        elif newest is not None and newest.finished:
            log.warning("run_ended_elsewhere", extra={"run_id": session.spec.run_id, "error": str(error)})
            await session.end(newest)
        elif may_go_on(session, newest, error):
            return None if self._stopping else await self._reopened(session, newest, error)
        else:
            await self._fail(session, error)
        return None

    async def _reopened(
        self, session: TrainingSession, newest: SessionState | None, error: Exception
    ) -> TrainingSession:
        """A session of the same run that begins at `newest`, with every fact since."""
        spec, submission = session.spec, session.submission
        after = submission.sequence if newest is None else newest.cursor
        following = self._new(submission, newest)
        hand_over(session, following)
        with self._interim.keeping(session) as interim:
            recalled = await RetryUntilAvailable().until_available(lambda: self.read_again(spec, after))
            feed(following, recalled, interim)
            self._sessions[spec.run_id] = following
        step = 0 if newest is None else newest.step
        extra = {"run_id": spec.run_id, "step": step, "lost": following.lost_in_a_row, "error": str(error)}
        log.warning("session_reopened", extra=extra)
        return following

    async def _fail(self, session: TrainingSession, error: Exception) -> None:
        spec, state, kind = session.spec, session.state, kind_of(error)
        extra = {"run_id": spec.run_id, "kind": kind.value, "error": str(error)}
        log.error("training_failed", exc_info=error if kind is SessionFailure.ERROR else None, extra=extra)
        step, cursor = (0, session.submission.sequence) if state is None else (state.step, state.cursor)
        failure = self._failure(spec.run_id, spec.model, error, step=step, cursor=cursor)
        await self._end_failed(session, FailedRun(failure, state))

    async def _end_failed(self, session: TrainingSession, run: FailedRun) -> None:
        """Store the failure, then publish session.failed."""
        run_id = run.failure.run_id
        self.failures.add(run)
        if session.buffer.run_over:
            self.failures.over(run_id)
        await session.fail(await self.failures.remember(run_id))
        await self.failures.publish(run_id)

    async def watch(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise what ends the process."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                ended = asyncio.create_task(self._ended.get())
                await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not ended.result().cancelled():
                    ended.result().result()
                ended.cancel()
        finally:
            stopping.cancel()

    async def stop(self) -> None:
        """Let steps in progress become durable, then end every session. A step that takes too long is
        abandoned: no durable state holds it, so the trainer that resumes the run takes it again."""
        self._stopping = True
        for session in self._sessions.values():
            session.stop()
        running = [task for task in self._tasks.values() if not task.done()]
        for run_id, session in self._sessions.items():
            if session.phase is SessionPhase.OPENING:
                self._tasks[run_id].cancel()
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=self._leave_s)
        for task in late:
            log.warning("step_abandoned", extra={"task": task.get_name(), "leave_s": self._leave_s})
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_LAST_MOMENT_S)

    @property
    def all(self) -> list[TrainingSession]:
        """RunSessions of this process, in the order in which they began."""
        return list(self._sessions.values())

    @property
    def past(self) -> list[SessionState]:
        """Runs that ended before this process began."""
        return list(self._past.values())

    @property
    def failed(self) -> list[FailedRun]:
        """Runs that failed and have no session here: refused, broken, or failed before this process began."""
        return [run for run in self.failures.all if run.failure.run_id not in self._sessions]

    @property
    def alarm_limits(self) -> AlarmLimits:
        """Limits beyond which a step raises an alarm."""
        return self._deps.alarm_limits

    def get(self, run_id: str) -> TrainingSession:
        """The session of a run. Raises UnknownSession."""
        if run_id not in self._sessions:
            known = ", ".join(sorted(self._sessions)) or "none"
            raise UnknownSession(f"no training session for run {run_id!r}; sessions: {known}")
        return self._sessions[run_id]

    def waiting_for(self) -> str | None:
        """The service or store that a session waits for, if there is one; failed sessions are left out."""
        for session in self._sessions.values():
            if session.waiting_for is not None and session.spec.run_id not in self.failures:
                return f"{session.spec.run_id} waits for {session.waiting_for}"
        return self.retry.waiting_for


async def _as_errors(work: Coroutine[Any, Any, None]) -> None:
    """A CancelledError that this process did not ask for becomes Escaped, which `watch` raises."""
    with as_errors():
        await work


async def _end_of(session: TrainingSession) -> Exception | None:
    """Run a session. Returns the error that ended it; None if its run is over or the process stops."""
    try:
        with as_errors():
            await session.run()
    except ENDS_PROCESS:
        raise
    except Exception as error:
        return error
    return None


def _replayed_after(found: FoundStates) -> int:
    """The sequence after which a replay finds everything that is not over.

    A cursor lies before the submission of every run that had no state yet, so if no run is
    unfinished, the newest cursor loses none either.
    """
    failed = {run.failure.run_id: run.failure.cursor for run in found.failed if not run.closed}
    going = [state.cursor for state in found.states if not state.finished]
    over = [state.cursor for state in found.states if state.finished]
    over += [run.failure.cursor for run in found.failed if run.closed]
    return min([*going, *failed.values()], default=max(over, default=0))
