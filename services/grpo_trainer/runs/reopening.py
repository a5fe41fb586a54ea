"""Opens a run that this trainer holds: for the first time, after another trainer, or again after an error.

The session starts from the newest state. Groups that the state does not count as settled are rebuilt from the
facts that the stream holds after the state's cursor. Live facts that arrive meanwhile are kept, and given to
the session after the replayed ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from grpo_trainer.domain.errors import LineageTaken
from grpo_trainer.domain.failures import BrokenRun, FailedRun
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trajectories import Submission
from grpo_trainer.holding import HeldModel
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.group_buffer import Fact
from grpo_trainer.runs.session import TrainingSession
from identities.objects import training_run
from service_kit.loops import first_of

MAX_LOST: Final = 3
"""How often in a row a session is opened again without a durable step of its own in between, although this
trainer holds the run."""

_LOOK_S: Final = 2.0
"""How often a trainer looks at what another one stored of a run."""

ReadAgain = Callable[[str, str, int], Awaitable[Sequence[Fact]]]
"""Facts about a model's run that the stream holds after a sequence, in order. Raises Unavailable."""


@dataclass(slots=True)
class OpenRun:
    """A run that is not over, whichever trainer holds it. submission: None until it is known. over: set when
    the planner ended it."""

    model: str
    run_id: str
    submission: Submission | None = None
    submitted: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def learn(self, submission: Submission) -> None:
        """Its run.submitted was read; the first one counts."""
        self.submission = self.submission or submission
        self.submitted.set()

    async def begins(self, state: SessionState | None) -> Submission | None:
        """The submission: as the state has it, else as it arrives. None if the run is over before that."""
        if state is not None:
            return Submission(state.spec, state.cursor, state.trace_headers)
        if self.submission is None:
            async with first_of(self.submitted.wait(), self.over.wait()):
                pass
        return self.submission


async def newest_of(run: OpenRun, deps: RunDeps) -> SessionState | FailedRun | BrokenRun | None:
    """The newest durable state of a run, of any trainer, or how it failed."""
    return await RetryUntilAvailable().until_available(lambda: deps.states.find_run(run.model, run.run_id))


def is_durable(found: SessionState | FailedRun | BrokenRun | None) -> bool:
    """Whether a trainer can go on with the run, or leave it, without its run.submitted."""
    return isinstance(found, SessionState | FailedRun) or is_closed(found)


def is_closed(found: SessionState | FailedRun | BrokenRun | None) -> bool:
    """Whether a run needs no trainer any more."""
    return found.finished if isinstance(found, SessionState) else found is not None and found.closed


async def until_stored(
    run: OpenRun, deps: RunDeps, is_enough: Callable[[SessionState | FailedRun | BrokenRun | None], bool]
) -> None:
    """Wait until what is stored of a run, by another trainer, is enough."""
    while not is_enough(await newest_of(run, deps)):
        await asyncio.sleep(_LOOK_S)


async def until_lost(held: HeldModel, work: Coroutine[Any, Any, bool]) -> bool:
    """The result of `work`; False, and the work is cancelled, when another trainer took the model."""
    async with first_of(work, held.lost.wait()) as (working, _):
        return working.done() and working.result()


async def claimed(run: OpenRun, held: HeldModel, deps: RunDeps) -> None:
    """Make the markers of the run those of this trainer. Raises LineageTaken, BrokenArtifact."""
    line = training_run(run.model, run.run_id)
    await RetryUntilAvailable().until_available(
        lambda: deps.states.claim(line, token=held.token, by=held.holder)
    )


def may_go_on(session: TrainingSession, newest: SessionState | None, error: Exception) -> bool:
    """Whether another trainer is the reason why the session ended, and another try is worth it."""
    lost = 0 if session.took_steps else session.lost_in_a_row
    if newest is None:  # nothing durable: where the session had a state, it was deleted
        is_taken = session.state is None and isinstance(error, LineageTaken)
    else:
        is_behind = session.state is None or newest.step > session.state.step
        is_taken = is_behind or isinstance(error, LineageTaken)
    return is_taken and lost < MAX_LOST


class Interim:
    """Facts that arrive while sessions are opened again."""

    def __init__(self) -> None:
        self._facts: dict[str, list[Fact]] = {}

    @contextmanager
    def keeping(self, run_id: str) -> Iterator[list[Fact]]:
        """Inside, facts about the run are kept. What the body leaves is dropped: the next session of the run
        reads it from the stream."""
        facts = self._facts[run_id] = []
        try:
            yield facts
        finally:
            del self._facts[run_id]

    def put(self, run_id: str, fact: Fact) -> bool:
        """Keep the fact if the session of that run is being opened again; returns whether it is."""
        if run_id not in self._facts:
            return False
        self._facts[run_id].append(fact)
        return True


def hand_over(before: TrainingSession, following: TrainingSession) -> None:
    """Copy to the next session of a run how often it lost in a row, and the metrics of its steps."""
    following.lost_in_a_row = 1 + (0 if before.took_steps else before.lost_in_a_row)
    step = 0 if following.state is None else following.state.step
    following.history.extendleft(record for record in reversed(before.history) if record.step < step)


def feed(following: TrainingSession, recalled: Sequence[Fact], interim: list[Fact]) -> None:
    """Give a session the replayed facts, then the live ones; it ignores those that it was given already."""
    for fact in (*recalled, *interim):
        following.put(fact)
    interim.clear()
