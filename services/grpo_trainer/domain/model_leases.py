"""Which run, or which interactive call, may add versions to a model now."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_trainer.domain.errors import ModelBusy
from upcycle.errors import Unavailable


@dataclass(frozen=True, slots=True)
class RunLease:
    """The place of one run in the queue of its model."""

    leases: ModelLeases
    model: str
    run_id: str

    async def check(self) -> None:
        """Raises Unavailable until it is the run's turn."""
        self.leases.check_run(self.model, self.run_id)

    def release(self) -> None:
        """The run adds no more versions; safe to repeat."""
        self.leases.end_run(self.model, self.run_id)


class ModelLeases:
    """One run or one interactive call at a time adds versions to a model.

    Runs get a model in the order in which they were submitted. A run waits until the runs before it are over
    and the interactive call in progress has ended. While a run trains or waits, new interactive calls are
    refused, so that a run never waits for more than one call.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}
        self._calls: set[str] = set()
        self._runs_are_known = False

    def runs_are_known(self) -> None:
        """Every run that an earlier process left unfinished is queued; interactive calls may begin."""
        self._runs_are_known = True

    def queue_run(self, model: str, run_id: str) -> RunLease:
        """A run will train the model after the runs that are queued already; safe to repeat."""
        runs = self._runs.setdefault(model, [])
        if run_id not in runs:
            runs.append(run_id)
        return RunLease(self, model, run_id)

    def check_run(self, model: str, run_id: str) -> None:
        """Return if it is the turn of a queued run. Raises Unavailable otherwise."""
        first = self._runs[model][0]
        if first != run_id:
            raise Unavailable(f"{first}, which trains {model!r} before it")
        if model in self._calls:
            raise Unavailable(f"the interactive call about {model!r} that is in progress")

    def end_run(self, model: str, run_id: str) -> None:
        """The run adds no more versions; safe to repeat."""
        if run_id in self._runs.get(model, ()):
            self._runs[model].remove(run_id)

    def begin_call(self, model: str) -> None:
        """An interactive call begins; the caller sees to it that a model has one at a time.

        Raises ModelBusy while a run trains the model or waits for it; Unavailable until runs_are_known.
        """
        if not self._runs_are_known:
            raise Unavailable("the list of unfinished runs, which the trainer is reading")
        if runs := self._runs.get(model):
            raise ModelBusy(f"run {runs[0]} trains {model!r}: wait until it is over, or stop it")
        self._calls.add(model)

    def end_call(self, model: str) -> None:
        """The interactive call has ended."""
        self._calls.discard(model)
