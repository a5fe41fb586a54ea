"""Watches head: after each promotion it and its predecessor play drawn tasks side by side, and head goes back
when the pairs show that it is worse. Lowest priority: candidates of the model come first.

Every step is idempotent by request id and run id; the watch itself is replayed from its stored pairs.
"""

import asyncio
import hashlib
import logging
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile

from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.errors import PeerRefused, UnknownModel
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.models import HeadMove, Model
from checkpoint_registry.domain.runs import EvaluationOrder, RunOutcome, exact_name
from checkpoint_registry.domain.watches import WatchedHead, WatchRun, pairs_of, watch_of
from checkpoint_registry.ports import Clock, Tasksets
from checkpoint_registry.usecases.rollback import roll_back
from identities.entities import watch_request_id
from upcycle.errors import Unavailable
from upcycle.gate.watch import Watch

log = logging.getLogger(__name__)

_SEED_BITS = 62  # SamplingConfig.seed is an int64
_MAX_DOUBLINGS = 16
_LONGEST_RETRY_S = 12 * 3600.0


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


class WatchHeads:
    """Orders pairs of head and its predecessor, reads them, and moves head back."""

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
        # Runs that were judged already; forgetting them costs time, not correctness.
        self._judged: dict[str, int] = {}

    async def consider(self, model_name: str) -> HeadMove | None:
        """One look at a model: reads what ended, judges it, and orders more where nothing else waits."""
        if not self._policy.enabled:
            return None
        try:
            model = await self._models.model(model_name)
        except UnknownModel:
            return None
        watched = await self._watched(model)
        if watched is None:
            return None
        runs = await self._store.runs(model_name, model.head_revision)
        if runs and runs[-1].state is RequestState.SUBMITTED:
            await self._follow(runs[-1])
            runs = await self._store.runs(model_name, model.head_revision)
        families = await self._families(watched)
        if families:
            watch = await asyncio.to_thread(watch_of, families, runs)
            if watch.is_lost:
                return await self._roll_back(model, watched, watch)
            await self._play_more(watched, runs, watch.pairs)
        return None

    async def collect(self, run_id: str) -> bool:
        """Reads a run that ended; False: it is no run of a watch."""
        run = await self._store.of_run(run_id)
        if run is None:
            return False
        if run.state is RequestState.SUBMITTED:
            await self._read_ended(run)
        return True

    async def _watched(self, model: Model) -> WatchedHead | None:
        """None where head moved back or is where it began, and where no gate says on which tasks."""
        move = await self._models.last_head_move(model.model)
        if not move.is_forward or not move.from_checkpoint_id:
            return None
        job = await self._store.gate_of(model.model)
        if job is None or job.gate is None or job.profile is None:
            return None
        head = await self._models.checkpoint(move.to_checkpoint_id)
        predecessor = await self._models.checkpoint(move.from_checkpoint_id)
        return WatchedHead(job, job.gate, job.profile, head, predecessor, model.head_revision)

    async def _families(self, watched: WatchedHead) -> tuple[str, ...]:
        """Of the held-out tasks; none where they are gone."""
        name = exact_name(watched.gate.taskset, watched.job.taskset_revision)
        found = await self._tasksets.taskset(name)
        if found is None or found.digest != watched.job.taskset_digest or not found.is_held_out:
            return ()
        return tuple(sorted(set(found.families.values())))

    async def _follow(self, run: WatchRun) -> None:
        is_late = self._now() >= run.updated_at + timedelta(seconds=self._policy.deadline_s)
        try:
            # Unavailable may be about this run alone, each time: its results take too long, or meet a bug.
            with suppress(Unavailable) if is_late else nullcontext():
                await self._read_ended(run)
            if is_late:
                await self._give_up(run, f"it did not end within {self._policy.deadline_s:g} s")
        except PeerRefused as error:
            await self._store.give_up(run.run_id, str(error), self._now())

    async def _read_ended(self, run: WatchRun) -> None:
        found = await self._tasksets.run(run.run_id)
        if found is None:
            await self._store.give_up(run.run_id, "the planner does not know it", self._now())
        elif found.outcome is RunOutcome.COMPLETED:
            found = await self._tasksets.run(run.run_id, include_results=True) or found
            await self._store.finish(run.run_id, pairs_of(found.results), self._now())
        elif found.outcome is not RunOutcome.UNFINISHED:
            await self._store.give_up(run.run_id, found.failure or found.outcome.value, self._now())

    async def _give_up(self, run: WatchRun, why: str) -> None:
        with suppress(PeerRefused):
            await self._tasksets.cancel(run.run_id, why)
        await self._store.give_up(run.run_id, why, self._now())

    async def _play_more(self, watched: WatchedHead, runs: list[WatchRun], num_pairs: int) -> None:
        last = runs[-1] if runs else None
        if last is not None and last.state is RequestState.SUBMITTED:
            return
        if last is not None and self._now() < last.updated_at + self._pause(runs, num_pairs):
            return
        if num_pairs >= self._policy.pairs and not self._policy.trickle_s:
            return
        if await self._store.has_candidates(watched.job.model):
            return  # they come first
        await self._order(watched, len(runs))

    def _pause(self, runs: list[WatchRun], num_pairs: int) -> timedelta:
        """Doubles while runs fail in a row: a predecessor whose files are gone is refused forever."""
        num_failed = len(list(takewhile(lambda run: run.state is RequestState.FAILED, reversed(runs))))
        if num_failed:
            doublings = min(num_failed - 1, _MAX_DOUBLINGS)
            return timedelta(seconds=min(self._policy.retry_s * 2.0**doublings, _LONGEST_RETRY_S))
        return timedelta(seconds=self._policy.trickle_s if num_pairs >= self._policy.pairs else 0)

    async def _order(self, watched: WatchedHead, number: int) -> None:
        request_id = watch_request_id(watched.job.model, watched.revision, number)
        digest = hashlib.sha256(request_id.encode()).digest()
        order = EvaluationOrder(
            request_id=request_id,
            model=watched.job.model,
            version=watched.head.version,
            against_version=watched.predecessor.version,
            taskset=exact_name(watched.gate.taskset, watched.job.taskset_revision),
            families=(),
            attempts=1,
            profile=watched.profile,
            seed=int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS),
            label=f"watch {watched.job.model}@v{watched.head.version} against v{watched.predecessor.version}",
            draws=self._policy.batch,
            max_concurrent=max(2, self._policy.in_flight),
        )
        run_id, state, detail = "", RequestState.FAILED, ""
        try:
            run_id, state = await self._tasksets.submit(order), RequestState.SUBMITTED
        except PeerRefused as error:
            detail = str(error)
        run = WatchRun(
            request_id, watched.job.model, watched.revision, number, run_id, state, detail, self._now()
        )
        await self._store.add(run)
        log.info("watch_ordered", extra={"request_id": request_id, "run_id": run_id, "detail": detail})

    async def _roll_back(self, model: Model, watched: WatchedHead, watch: Watch) -> HeadMove | None:
        bet = watch.bets[watch.cause]
        reason = (
            f"rolled back: over {watch.pairs} drawn pairs v{watched.head.version} did worse than "
            f"v{watched.predecessor.version} before it ({watch.cause}: worse in {bet.worse}, better in "
            f"{bet.better}); an equal head is taken back with at most {watch.alpha:.0%}"
        )
        return await roll_back(self._models, model, watched.predecessor, reason, at=self._now())
