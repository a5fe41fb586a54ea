"""All training sessions of this process: resumes them from their states, opens one for each submitted run,
and gives each its facts in stream order.

An error of a session ends its own run, by the event session.failed, and no other run. Two errors end the
process instead: a lost rank, and a service or store that was unavailable for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from episodes import SessionFailure
from grpo_trainer.domain.errors import BrokenArtifact, InvalidTrainingSpec, LineageTaken
from grpo_trainer.domain.failures import ENDS_PROCESS, BrokenRun, FailedRun, Failure, detail_of, kind_of
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.domain.trajectories import Submission
from grpo_trainer.holding import HeldModel
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.failing import Failures
from grpo_trainer.runs.group_buffer import Fact, RunOver
from grpo_trainer.runs.known_runs import KnownRuns
from grpo_trainer.runs.reopening import (
    Interim,
    OpenRun,
    ReadAgain,
    claimed,
    feed,
    hand_over,
    is_closed,
    is_durable,
    may_go_on,
    newest_of,
    until_lost,
    until_stored,
)
from grpo_trainer.runs.session import TrainingSession
from grpo_trainer.runs.watermark import ReplayWatermark
from service_kit.errors import as_errors
from service_kit.loops import first_of
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_LAST_MOMENT_S: Final = 1.0
"""How long abandoned sessions may take to end; a learner that computes a step cannot be interrupted."""
_PAUSE_S: Final = 0.2
"""Before a run is looked at again that another trainer took."""
_OF_LEAVING: Final = (SessionFailure.ERROR, SessionFailure.LINEAGE_TAKEN)
"""Errors that a stopping process may cause itself: they fail no run while it stops."""


class RunSessions(KnownRuns):
    """Routes each fact to its run. Runs whose model another trainer holds wait here until it is free; others
    that this trainer does not train are ignored."""

    def __init__(
        self,
        deps: RunDeps,
        read_again: ReadAgain,
        *,
        leave_s: float = 15.0,
        leases: ModelLeases | None = None,
    ) -> None:
        """read_again: for runs that are opened. leave_s: how long `stop` waits for steps under way to
        become durable; then they are abandoned. leases: shared with interactive training, if there is any."""
        watermark = ReplayWatermark()
        super().__init__(deps, Failures(deps, watermark, self._spawn), watermark)
        self._leave_s = leave_s
        self._leases = leases or ModelLeases()
        self._stopping = False
        self.read_again = read_again
        self._interim = Interim()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._renewing: asyncio.Task[None] | None = None

    async def restore(self) -> int:
        """Follow every run that is not over. Returns the sequence after which facts must be replayed, to find
        the runs that were submitted since."""
        first = await self.retry.until_available(self.holding.begin)
        self.watermark.handled = first.bound
        for model, run_id in await self._open_runs_at(first):
            self._follow(OpenRun(model, run_id))
        self.holding.starting_point = self._starting_point
        self._leases.runs_are_known()
        self._renewing = asyncio.create_task(_as_errors(self.holding.run()), name="leases")
        self._renewing.add_done_callback(self._ended.put_nowait)
        return self.watermark.handled

    def _know(self, run: FailedRun) -> None:
        """Take note of a failed run that has no session here; publish its failure if that is open."""
        run_id = run.failure.run_id
        self.failures.add(run)
        if not run.closed:
            self._spawn(f"failing/{run_id}", self.failures.record_and_publish(run_id))

    def submit(self, spec: TrainingSpec, sequence: int, trace_headers: Mapping[str, str]) -> None:
        """A training run was submitted; repeated submissions change nothing."""
        submission, known = Submission(spec, sequence, trace_headers), self._open.get(spec.run_id)
        if known is None and (spec.run_id in self._sessions or spec.run_id in self.failures):
            return
        self.watermark.opening(spec.run_id, sequence)
        if known is None:
            self._follow(OpenRun(spec.model, spec.run_id, submission))
        else:
            known.learn(submission)

    def _follow(self, run: OpenRun) -> None:
        self._open[run.run_id], self._unclosed[run.run_id] = run, run.model
        self._leases.queue_run(run.model, run.run_id)
        self._spawn(run.run_id, self._to_its_end(run), prefix="session/")

    def _new(self, submission: Submission, state: SessionState | None = None) -> TrainingSession:
        lease = self._leases.queue_run(submission.spec.model, submission.spec.run_id)
        return TrainingSession(submission, self._deps, self.watermark, state, lease=lease)

    def refuse(self, run_id: str, model: str, sequence: int, error: InvalidTrainingSpec) -> None:
        """Fail a run that was submitted at `sequence` with a configuration that this trainer refuses."""
        if run_id in self.failures:
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
        if isinstance(fact, RunOver):
            if run_id in self.failures:
                self.failures.over(run_id)
            if run_id in self._open:
                self._open[run_id].over.set()
        session = self._sessions.get(run_id)
        if run_id not in self.failures and not self._interim.put(run_id, fact) and session is not None:
            session.put(fact)

    def stream_restarted(self) -> None:
        """The stream was created again: its sequences begin anew."""
        self.watermark.handled = 0
        for session in self._sessions.values():
            session.put_up_to = 0

    def handled(self, sequence: int) -> None:
        """Every fact up to `sequence` has reached its session."""
        self.watermark.handled = max(self.watermark.handled, sequence)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None], *, prefix: str = "") -> None:
        task = asyncio.create_task(_as_errors(work), name=f"{prefix}{name}")
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        task.add_done_callback(self._ended.put_nowait)

    async def _to_its_end(self, run: OpenRun) -> None:
        """Train a run whenever this trainer holds its model, until the run is over or has failed."""
        try:
            with self.holding.wanting(run.model):
                is_done = False
                while not is_done and (held := await self._lease_of(run)) is not None:
                    is_done = await until_lost(held, self._train(run, held))
                    if not is_done:
                        self._sessions.pop(run.run_id, None)
                        await asyncio.sleep(_PAUSE_S)
            if not self._stopping:
                self.watermark.closed(run.run_id)
                del self._unclosed[run.run_id]
        finally:
            self._leases.end_run(run.model, run.run_id)
            self._open.pop(run.run_id, None)
            self._keep_few(run.run_id)

    async def _lease_of(self, run: OpenRun) -> HeldModel | None:
        """Wait until this trainer holds the model of a run; None where the trainer that holds it closed the
        run."""
        async with first_of(self.holding.acquired(run.model), self._closed_elsewhere(run)) as (holding, over):
            return holding.result() if holding.done() else over.result()

    async def _closed_elsewhere(self, run: OpenRun) -> None:
        """Wait until another trainer closed a run that the planner ended."""
        await until_stored(run, self._deps, is_durable)
        self.watermark.opened(run.run_id)  # the other one's: cursors here may pass its submission
        await run.over.wait()
        await until_stored(run, self._deps, is_closed)

    async def _train(self, run: OpenRun, held: HeldModel) -> bool:
        """Run the session of a run, and the sessions that replace it. Returns whether the run is done here:
        over, failed, or left because the process stops."""
        session, left = await self._opened(run, held), False
        while session is not None:
            try:
                error = await _end_of(session)
                left = error is None
                following = None if error is None else await self._following(run, held, session, error)
            finally:
                await session.close()
            session = following
        return (
            left
            or self._stopping
            or run.run_id in self.failures
            or is_closed(await newest_of(run, self._deps))
        )

    async def _opened(
        self, run: OpenRun, held: HeldModel, before: TrainingSession | None = None
    ) -> TrainingSession | None:
        """A session that begins at the newest state of the run, with every fact since. before: the session
        that it replaces. None where the run is over, has failed, or is not ours any more."""
        newest = await newest_of(run, self._deps)
        if not is_closed(newest) and not isinstance(newest, FailedRun | BrokenRun):
            try:
                await claimed(run, held, self._deps)
            except (LineageTaken, BrokenArtifact) as error:
                log.warning("claim_refused", extra={"run_id": run.run_id, "error": str(error)})
                await self.holding.look_again()
                return None
            newest = await newest_of(run, self._deps)
        if isinstance(newest, BrokenRun):
            newest = self._broken(newest)
        if isinstance(newest, FailedRun):
            await self._adopt(newest)
            return None
        return None if is_closed(newest) else await self._begun(run, newest, before)

    async def _begun(
        self, run: OpenRun, state: SessionState | None, before: TrainingSession | None
    ) -> TrainingSession | None:
        submission = await run.begins(state)
        if submission is None:
            await self.retry.until_available(lambda: self._deps.states.close(run.model, run.run_id))
            return None
        following = self._new(submission, state)
        if before is not None:
            hand_over(before, following)
        with self._interim.keeping(run.run_id) as interim:
            recalled = await self._recalled(run.model, run.run_id, submission.sequence)
            feed(following, recalled, interim)
            self._sessions[run.run_id] = following
        return following

    async def _recalled(self, model: str, run_id: str, after: int) -> Sequence[Fact]:
        return await RetryUntilAvailable().until_available(lambda: self.read_again(model, run_id, after))

    async def _adopt(self, run: FailedRun) -> None:
        """Take note of a run that failed before, here or elsewhere; close it if the planner ended it."""
        failure = run.failure
        if failure.run_id in self.failures:
            return
        self._know(run)
        if not run.closed:
            recalled = await self._recalled(failure.model, failure.run_id, failure.cursor)
            if any(isinstance(fact, RunOver) for fact in recalled):
                self.failures.over(failure.run_id)

    def _broken(self, run: BrokenRun) -> FailedRun:
        log.error("training_failed", extra={"run_id": run.run_id, "error": run.detail})
        failure = self._failure(run.run_id, run.model, BrokenArtifact(run.detail), step=run.step, cursor=0)
        return FailedRun(failure, closed=run.closed)

    async def _following(
        self, run: OpenRun, held: HeldModel, session: TrainingSession, error: Exception
    ) -> TrainingSession | None:
        """The session that replaces `session`, which `error` ended; None if its run is over, has failed, or
        is not ours any more."""
        if self._stopping and kind_of(error) in _OF_LEAVING:
            log.warning("session_left", exc_info=error, extra={"run_id": run.run_id})
            return None
        if isinstance(error, LineageTaken):
            await self.holding.look_again()
        if held.lost.is_set():
            return None
        try:
            return await self._gone_on(run, held, session, error)
        except ENDS_PROCESS:
            raise
        except Exception as unexpected:
            await self._fail(held, session, unexpected)
        return None

    async def _gone_on(
        self, run: OpenRun, held: HeldModel, session: TrainingSession, error: Exception
    ) -> TrainingSession | None:
        """Look the run up in the store: another trainer may have failed, finished or continued it."""
        newest = await newest_of(run, self._deps)
        if isinstance(newest, FailedRun):
            await self._end_failed(session, newest)
        elif isinstance(newest, BrokenRun):  # the session's own error explains more
            await self._fail(held, session, error)
        elif newest is not None and newest.finished:
            log.warning("run_ended_elsewhere", extra={"run_id": run.run_id, "error": str(error)})
            await session.end(newest)
        elif not may_go_on(session, newest, error):
            await self._fail(held, session, error)
        elif not self._stopping:
            following = await self._opened(run, held, session)
            log.warning("session_reopened", extra={"run_id": run.run_id, "error": str(error)})
            return following
        return None

    async def _fail(self, held: HeldModel, session: TrainingSession, error: Exception) -> None:
        """Fail a run, unless another trainer has it."""
        spec, state, kind = session.spec, session.state, kind_of(error)
        extra = {"run_id": spec.run_id, "kind": kind.value, "error": str(error)}
        log.error("training_failed", exc_info=error if kind is SessionFailure.ERROR else None, extra=extra)
        step, cursor = (0, session.submission.sequence) if state is None else (state.step, state.cursor)
        failure = self._failure(spec.run_id, spec.model, error, step=step, cursor=cursor)
        try:
            await RetryUntilAvailable().until_available(lambda: self._deps.states.claim_failed(failure, held))
        except LineageTaken as taken:
            log.warning("failure_not_ours", extra={"run_id": spec.run_id, "error": str(taken)})
            await self.holding.look_again()
            return
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
        for begun in self._sessions.values():
            begun.stop()
        running = [task for task in self._tasks.values() if not task.done()]
        for run_id in self._open:
            session = self._sessions.get(run_id)
            if session is None or session.phase is SessionPhase.OPENING:
                self._tasks[run_id].cancel()
        if running:
            _, late = await asyncio.wait(running, timeout=self._leave_s)
            for task in late:
                log.warning("step_abandoned", extra={"task": task.get_name(), "leave_s": self._leave_s})
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_LAST_MOMENT_S)
        await self._give_back()

    async def _give_back(self) -> None:
        """The last thing that this process does: other trainers may take its models at once."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait({self._renewing})
        try:
            async with asyncio.timeout(_LAST_MOMENT_S):
                await self.holding.leave()
        except (Unavailable, TimeoutError) as error:
            log.warning("leases_not_given_back", extra={"error": str(error)})


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
