"""Opens a run again after another trainer has stored a newer state of it.

The new session starts from that state. Groups that the state does not count as settled are rebuilt from the
facts that the stream holds after the state's cursor. Live facts that arrive meanwhile are kept, and given to
the session after the replayed ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken
from grpo_trainer.domain.failures import FailedRun
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionState
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.group_buffer import Fact
from grpo_trainer.runs.session import TrainingSession

MAX_LOST: Final = 3
"""How often in a row a session is opened again without a durable step of its own in between."""

ReadAgain = Callable[[TrainingSpec, int], Awaitable[Sequence[Fact]]]
"""Facts about a run that the stream holds after a sequence, in order. Raises Unavailable."""


async def newest_of(spec: TrainingSpec, deps: RunDeps) -> SessionState | FailedRun | None:
    """The newest durable state of a run, of any trainer, or its failure. Raises BrokenArtifact where neither
    can be read."""
    found = await RetryUntilAvailable().until_available(lambda: deps.states.find_run(spec.model, spec.run_id))
    if found.broken:
        raise BrokenArtifact(found.broken[0].detail)
    if found.failed:
        return found.failed[0]
    return found.states[0] if found.states else None


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
    def keeping(self, session: TrainingSession) -> Iterator[list[Fact]]:
        """Inside, facts about the run of `session` are kept. Those that are left go to the session."""
        run_id = session.spec.run_id
        facts = self._facts[run_id] = []
        try:
            yield facts
        finally:
            del self._facts[run_id]
            for fact in facts:
                session.put(fact)

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
    """Give a session the replayed facts, then the live ones that are newer. Empties `interim`."""
    for fact in recalled:
        following.put(fact)
    newest = recalled[-1].sequence if recalled else 0
    for fact in interim:
        if fact.sequence > newest:
            following.put(fact)
    interim.clear()
