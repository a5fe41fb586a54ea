"""Which head of a model is watched, whether its watch plays now, and what it waits for. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.models import Model
from checkpoint_registry.domain.runs import TasksetView, TrainingLoad, exact_name
from checkpoint_registry.domain.watches import (
    WatchedHead,
    WatchRun,
    is_within,
    pairs_beside,
    pairs_under,
    why_none_beside,
)
from checkpoint_registry.ports import Clock, Tasksets

_MAX_DOUBLINGS = 16
_LONGEST_RETRY_S = 12 * 3600.0
_OFF = "the watch is off: CHECKPOINT_REGISTRY_WATCH_PAIRS is 0, or CHECKPOINT_REGISTRY_AUTO_ROLLBACK is false"


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """How long head is watched, and how hard. pairs: at most, in runs of `batch`; after them a batch every
    `trickle_s` (0: none). in_flight: episodes of a watch at once."""

    enabled: bool = True
    pairs: int = 1000
    batch: int = 50
    in_flight: int = 8
    trickle_s: float = 3600.0
    retry_s: float = 60.0
    deadline_s: float = 6 * 3600.0  # of one run


@dataclass(frozen=True, slots=True)
class Turn:
    """A watch orders `pairs` beside these training runs, or waits. on: what for, without its figures; ""
    where it only waits for a time. until: when it may play again; None: once what it waits for is over."""

    pairs: int = 0
    trainings: Sequence[TrainingLoad] = ()
    waits_for: str = ""
    on: str = ""
    until: datetime | None = None


class WatchTurns:
    """What the watch of a model is about, and what it does next."""

    def __init__(
        self,
        store: SqlWatchStore,
        models: SqlModelStore,
        tasksets: Tasksets,
        policy: WatchPolicy,
        *,
        now: Clock,
    ) -> None:
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._policy = policy
        self._now = now

    async def watched(self, model: Model) -> WatchedHead | str:
        """The head that is watched; where none is, why."""
        if not self._policy.enabled:
            return _OFF
        move = await self._models.last_head_move(model.model)
        if not move.is_forward or not move.from_checkpoint_id:
            return "head is where it began, or moved back: there is no head before it to compare it with"
        job = await self._store.gate_of(model.model)
        if job is None or job.gate is None or job.profile is None:
            return "no training run of the model had a gate, whose held-out tasks the pairs would play"
        head = await self._models.checkpoint(move.to_checkpoint_id)
        predecessor = await self._models.checkpoint(move.from_checkpoint_id)
        return WatchedHead(job, job.gate, job.profile, head, predecessor, model.head_revision)

    async def tasks(self, watched: WatchedHead) -> TasksetView | None:
        """The held-out tasks; None where they are gone."""
        name = exact_name(watched.gate.taskset, watched.job.taskset_revision)
        found = await self._tasksets.taskset(name)
        if found is None or found.digest != watched.job.taskset_digest or not found.is_held_out:
            return None
        return found if found.families else None

    async def next(self, watched: WatchedHead, runs: Sequence[WatchRun]) -> Turn:
        """runs: of this head, none of which plays now. Raises Unavailable."""
        model = watched.job.model
        if waits := self._for_a_time(runs, await self._pairs(watched, runs)):
            return waits
        if await self._store.has_candidates(model):
            return Turn(waits_for="candidates of the model come first", on="candidates")
        trainings = await self._tasksets.trainings(model)
        began = min((one.submitted_at for one in trainings), default=self._now())
        spent_s = await self._store.engine_s(model, began) if trainings else 0.0
        if wanted := pairs_beside(trainings, spent_s, self._policy.batch):
            return Turn(wanted, trainings)
        on = " ".join(f"{one.run_id}:{one.engine_s > 0}" for one in trainings)
        return Turn(waits_for=why_none_beside(trainings, spent_s), on=on)

    async def _pairs(self, watched: WatchedHead, runs: Sequence[WatchRun]) -> int:
        """That say something of the environment as it is: after it changed the watch begins again. Which
        source lies there matters once all pairs are enough, and reading it takes the planner a while."""
        played = pairs_under(runs, "")
        if played < self._policy.pairs:
            return played
        name = exact_name(watched.gate.taskset, watched.job.taskset_revision)
        return pairs_under(runs, await self._tasksets.source_now(name))

    def _for_a_time(self, runs: Sequence[WatchRun], num_pairs: int) -> Turn | None:
        if runs:
            pause = self._pause(runs, num_pairs)
            if is_within(self._now(), runs[-1].updated_at, pause):
                next_at = runs[-1].updated_at + pause
                failed = runs[-1].state is RequestState.FAILED
                why = f"its last run brought nothing ({runs[-1].detail})" if failed else "it played its pairs"
                return Turn(waits_for=f"{why}; more at {next_at:%Y-%m-%d %H:%M:%S} UTC", until=next_at)
        if num_pairs >= self._policy.pairs and not self._policy.trickle_s:
            return Turn(waits_for="it played its pairs, and CHECKPOINT_REGISTRY_WATCH_TRICKLE_S is 0")
        return None

    def _pause(self, runs: Sequence[WatchRun], num_pairs: int) -> timedelta:
        """Doubles while runs fail in a row: a predecessor whose files are gone is refused forever."""
        num_failed = len(list(takewhile(lambda run: run.state is RequestState.FAILED, reversed(runs))))
        if num_failed:
            doublings = min(num_failed - 1, _MAX_DOUBLINGS)
            return timedelta(seconds=min(self._policy.retry_s * 2.0**doublings, _LONGEST_RETRY_S))
        return timedelta(seconds=self._policy.trickle_s if num_pairs >= self._policy.pairs else 0)
