"""A deadline for what the learner's thread computes: a GPU that hangs never returns.

A thread cannot be ended, so the process leaves. Before, it says for `leave_s` that it cannot work: other
trainers take its models at once, and /readyz shows why. The start of the batch stays on record, so that one
that takes too long on every trainer fails its run in the end.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from grpo_trainer.preemption import leave_by_force

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5


class StepDeadline:
    """A component that watches one thread, from a thread of its own: the event loop may hang with it."""

    name = "learner's deadline"

    def __init__(
        self,
        deadline_s: float,
        *,
        leave_s: float,
        leave: Callable[[str], None] = leave_by_force,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """leave: ends the process, for the reason that it is given."""
        self._deadline_s = deadline_s
        self._leave_s = leave_s
        self._leave = leave
        self._monotonic = monotonic
        self._began: float | None = None
        self._stopping = threading.Event()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the learner's thread, around one piece of work: a step, a load, a snapshot."""
        self._began = self._monotonic()
        try:
            yield
        finally:
            self._began = None

    def overdue(self) -> str | None:
        """Why this process cannot work and leaves soon; None while nothing takes too long."""
        if (late_s := self._late_s()) < 0:
            return None
        return (
            f"the learner has computed for {self._deadline_s + late_s:.0f} s without an end, more than "
            f"GRPO_TRAINER_STEP_DEADLINE_S ({self._deadline_s:g}): this process leaves, and another trainer "
            "takes its models"
        )

    def _late_s(self) -> float:
        began = self._began
        return -1.0 if began is None else self._monotonic() - began - self._deadline_s

    async def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._watch, name=self.name, daemon=True).start()

    async def stop(self) -> None:
        """Watch no more: PreemptionWatch bounds how long the process takes to stop."""
        self._stopping.set()

    def ready(self) -> str | None:
        """None while nothing takes too long."""
        return self.overdue()

    def _watch(self) -> None:
        is_said = False
        while not self._stopping.wait(_LOOK_S):
            why = self.overdue()
            if why is not None and not is_said:
                log.error("step_overdue", extra={"why": why, "leave_s": self._leave_s})
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
            is_said = why is not None
            if why is not None and self._late_s() >= self._leave_s:
                self._leave(why)
                return
