"""Optimizer steps that are in this process's memory only, and the note by which a later one knows of them.

The note is stored before a step is taken, and removed once a later step saved everything. So a process that
opens the model and finds a note about steps that no state holds knows that they are lost, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from grpo_trainer.domain.errors import LostSteps
from grpo_trainer.interactive.state import InteractiveState
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.learner.prepared import MeasuredPass
from grpo_trainer.retrying import RetryUntilAvailable
from upcycle.errors import Unavailable


@dataclass(frozen=True, slots=True)
class UnsavedSteps:
    """The steps since the last saved one, and what they trained on. step: the newest; version: the newest
    that they published, or that they began from."""

    step: int
    version: int
    trajectory_ids: tuple[str, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()

    def trained(self, passes: Iterable[MeasuredPass]) -> UnsavedSteps:
        """With what the newest step trained on."""
        done = list(passes)
        return replace(
            self,
            trajectory_ids=self.trajectory_ids + tuple(one for each in done for one in each.trajectory_ids),
            groups=self.groups + tuple(one for each in done for one in each.groups),
        )


class UnsavedLedger:
    """The unsaved steps of one session, and their note. steps: None where everything is saved."""

    def __init__(self, model: str, states: InteractiveStates, retry: RetryUntilAvailable) -> None:
        self._model = model
        self._states = states
        self._retry = retry
        self._reported = False
        self.steps: UnsavedSteps | None = None

    async def begin(self, newest: InteractiveState | None, version: int, *, is_saved: bool) -> UnsavedSteps:
        """The next step, after those that are not saved. Unless it is to be saved, a note of it is durable
        when this returns. version: of the weights that the session began from. Raises Unavailable, and then
        nothing has changed."""
        before = self.steps or UnsavedSteps(_saved_step(newest), version)
        after = replace(before, step=before.step + 1)
        if is_saved:
            return after
        await self._retry.until_available(lambda: self._states.note_unsaved(self._model, after.step))
        return after

    async def not_taken(self, *, is_saved: bool) -> None:
        """The step that `begin` noted was not taken. Where the store is unavailable the note names one step
        too many."""
        before = self.steps
        if is_saved:
            return
        with suppress(Unavailable):
            if before is None:
                await self._states.forget_unsaved(self._model)
            else:
                await self._states.note_unsaved(self._model, before.step)

    async def all_saved(self) -> None:
        """A step saved everything."""
        if self.steps is not None:
            await self._retry.until_available(lambda: self._states.forget_unsaved(self._model))
            self.steps = None

    async def refuse_lost(self, newest: InteractiveState | None) -> None:
        """Raises LostSteps, once, if steps were taken after the newest state and are gone. The next call goes
        on without them: the note is removed then, so that a process that dies in between says it again."""
        step = await self._retry.until_available(lambda: self._states.unsaved(self._model))
        if step is None:
            return
        if _saved_step(newest) < step and not self._reported:
            self._reported = True
            raise LostSteps(_lost(self._model, step, newest))
        self._reported = False
        await self._retry.until_available(lambda: self._states.forget_unsaved(self._model))


def _saved_step(newest: InteractiveState | None) -> int:
    return 0 if newest is None else newest.session.step


def _lost(model: str, step: int, newest: InteractiveState | None) -> str:
    saved = _saved_step(newest)
    lost = f"step {step}" if step == saved + 1 else f"steps {saved + 1} to {step}"
    last = "no step" if newest is None else f"step {saved} (v{newest.session.version})"
    return (
        f"{model}: {lost} had persist=weights or none and went with the memory of the trainer; {last} was "
        "saved. The next call goes on from there; persist=checkpoint saves a step and all before it"
    )
