"""All sessions of this trainer: resumed from their states, opened by submissions, fed with facts in stream
order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from grpo_trainer.domain.alarms import AlarmLimits
from grpo_trainer.domain.errors import InvalidTrainingSpec, UnknownSession, Waiting
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trajectories import Submission
from grpo_trainer.ports import Tools
from grpo_trainer.usecases.horizon import Horizon
from grpo_trainer.usecases.intake import Fact
from grpo_trainer.usecases.patience import Patience
from grpo_trainer.usecases.session import Phase, TrainingSession

log = logging.getLogger(__name__)

_OVER: Final = (Phase.FINISHED, Phase.FAILED)
_LAST_MOMENT_S: Final = 1.0
"""For abandoned sessions to let go; a learner in the middle of a step cannot."""


class Sessions:
    """Routes each fact to its run. Runs that this trainer does not train are ignored."""

    def __init__(
        self, tools: Tools, *, leave_s: float = 15.0, by_hand: Callable[[str], bool] = lambda model: False
    ) -> None:
        """leave_s: how long `stop` waits for steps under way to become durable; then they are abandoned.
        by_hand: whether a model is being trained by hand at this moment."""
        self._tools = tools
        self._leave_s = leave_s
        self._by_hand = by_hand
        self._restored = False
        self.horizon = Horizon()
        self.patience = Patience()
        self._sessions: dict[str, TrainingSession] = {}
        self._refused: dict[str, str] = {}
        self._past: dict[str, SessionState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

    async def restore(self) -> int:
        """Resume every run that is not over. Returns the sequence after which facts must be replayed."""
        found = await self.patience.until_done(self._tools.states.find)
        states = found.states
        self._refused.update(found.broken)
        going = [state for state in states if not state.finished]
        self._past = {state.spec.run_id: state for state in states if state.finished}
        after = min((state.cursor for state in going), default=max((s.seen for s in states), default=0))
        self.horizon.handled = after
        for state in going:
            submission = Submission(state.spec, state.cursor, state.trace_headers)
            self._start(TrainingSession(submission, self._tools, self.horizon, state))
        self._restored = True
        return after

    def submit(self, spec: TrainingSpec, sequence: int, trace_headers: Mapping[str, str]) -> None:
        """A training run was submitted; repeated submissions change nothing."""
        if spec.run_id in self._sessions or spec.run_id in self._past or spec.run_id in self._refused:
            return
        self.horizon.opening(spec.run_id, sequence)
        submission = Submission(spec, sequence, trace_headers)
        turn = partial(self._turn, spec)
        self._start(TrainingSession(submission, self._tools, self.horizon, turn=turn))

    async def _turn(self, spec: TrainingSpec) -> None:
        """One at a time adds versions to a model. A run begins when the runs before it are over and the call
        by hand that is under way has ended; those that come now are refused. Raises Waiting."""
        for run_id, session in self._sessions.items():
            if run_id == spec.run_id:
                break
            if session.spec.model == spec.model and session.phase not in _OVER:
                raise Waiting(f"{run_id}, which trains {spec.model!r} before it")
        if self._by_hand(spec.model):
            raise Waiting(f"the training of {spec.model!r} by hand that is under way")

    def refuse(self, run_id: str, error: InvalidTrainingSpec) -> None:
        """A run that asks for what cannot be."""
        log.error("training_refused", extra={"run_id": run_id, "error": str(error)})
        self._refused[run_id] = str(error)

    def put(self, run_id: str, fact: Fact) -> None:
        """A fact about a run, in stream order."""
        session = self._sessions.get(run_id)
        if session is not None:
            session.put(fact)

    def handled(self, sequence: int) -> None:
        """Every fact up to `sequence` has reached its session."""
        self.horizon.handled = max(self.horizon.handled, sequence)

    def _start(self, session: TrainingSession) -> None:
        self._sessions[session.spec.run_id] = session
        task = asyncio.create_task(session.run(), name=f"session/{session.spec.run_id}")
        self._tasks[session.spec.run_id] = task
        task.add_done_callback(self._ended.put_nowait)

    async def watch(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise what a session died of."""
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
        """Let steps under way become durable, then end every session. What takes too long is abandoned: the
        newest durable state does not know of it, and whoever resumes takes that step again."""
        for session in self._sessions.values():
            session.stop()
        running = [task for task in self._tasks.values() if not task.done()]
        for run_id, task in self._tasks.items():
            if self._sessions[run_id].phase is Phase.OPENING:
                task.cancel()
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=self._leave_s)
        for task in late:
            log.warning("step_abandoned", extra={"task": task.get_name(), "leave_s": self._leave_s})
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_LAST_MOMENT_S)

    def trainer_of(self, model: str) -> str | None:
        """The run that trains a model now, if there is one. Raises Waiting until that is known."""
        if not self._restored:
            raise Waiting("the runs that go on, which are being looked up")
        going = (one for one in self._sessions.values() if one.spec.model == model and one.phase not in _OVER)
        return next((one.spec.run_id for one in going), None)

    @property
    def all(self) -> list[TrainingSession]:
        """Sessions of this process, in the order in which they began."""
        return list(self._sessions.values())

    @property
    def past(self) -> list[SessionState]:
        """Runs that ended before this process began."""
        return list(self._past.values())

    @property
    def refused(self) -> Mapping[str, str]:
        """Runs that were refused, and why."""
        return self._refused

    @property
    def alarm_limits(self) -> AlarmLimits:
        """What steps are compared with."""
        return self._tools.alarm_limits

    def get(self, run_id: str) -> TrainingSession:
        """The session of a run. Raises UnknownSession."""
        if run_id not in self._sessions:
            known = ", ".join(sorted(self._sessions)) or "none"
            raise UnknownSession(f"no training session for run {run_id!r}; sessions: {known}")
        return self._sessions[run_id]

    def waiting_for(self) -> str | None:
        """What a session waits for outside of this process, if anything."""
        for session in self._sessions.values():
            if session.waiting_for is not None:
                return f"{session.spec.run_id} waits for {session.waiting_for}"
        return self.patience.waiting_for
