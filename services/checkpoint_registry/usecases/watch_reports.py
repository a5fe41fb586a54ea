"""What the watch of a model's head played so far, and what it does now, for who asks."""

import asyncio
from dataclasses import dataclass

from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.watches import watch_of
from checkpoint_registry.usecases.watch_turns import WatchPolicy, WatchTurns
from upcycle.gate.watch import SUCCESS

_TASKS_ARE_GONE = "the held-out tasks of the gate are gone or changed: nothing can be played on them"


@dataclass(frozen=True, slots=True)
class WatchReport:
    """Pairs of head and its predecessor; after their environment changed, those that it judged since. worse,
    better: those in which only the predecessor succeeded, and only head. run_id: of the run that plays now.
    waits_for: why none does."""

    head_version: int
    predecessor_version: int = 0
    pairs: int = 0
    pairs_wanted: int = 0
    worse: int = 0
    better: int = 0
    run_id: str = ""
    waits_for: str = ""


class ReportWatches:
    """Answers from the tables and the planner, so that every replica says the same."""

    def __init__(
        self, turns: WatchTurns, models: SqlModelStore, store: SqlWatchStore, policy: WatchPolicy
    ) -> None:
        self._turns = turns
        self._models = models
        self._store = store
        self._policy = policy

    async def of(self, model_name: str) -> WatchReport:
        """Raises UnknownModel, Unavailable."""
        model = await self._models.model(model_name)
        watched = await self._turns.watched(model)
        if isinstance(watched, str):
            return WatchReport(model.head_version, waits_for=watched)
        runs = await self._store.runs(model_name, model.head_revision)
        tasks = await self._turns.tasks(watched)
        state = await asyncio.to_thread(watch_of, tasks.family_names if tasks else (), runs)
        watch, bet = state.newest, state.newest.bets[SUCCESS]
        run_id, waits_for = "", "" if tasks else _TASKS_ARE_GONE
        if runs and runs[-1].state is RequestState.SUBMITTED:
            run_id = runs[-1].run_id
        elif tasks:
            waits_for = (await self._turns.next(watched, runs)).waits_for
        return WatchReport(
            watched.head.version,
            watched.predecessor.version,
            watch.pairs,
            self._policy.pairs,
            bet.worse,
            bet.better,
            run_id,
            waits_for,
        )
