"""Watches head: after each promotion it and its predecessor play drawn tasks side by side, and head goes back
when the pairs show that it is worse. Lowest priority: candidates of the model come first, and beside
training the watch takes at most a tenth of the seconds of engines that training took. Pairs that were ordered
before a training run began are called off when it samples, and those of a head when another one follows.

Every step is idempotent by request id and run id; the watch itself is replayed from its stored pairs.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta

from checkpoint_registry import telemetry
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.errors import PeerRefused, UnknownModel
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.models import HeadMove, Model
from checkpoint_registry.domain.open_alarms import OpenAlarms
from checkpoint_registry.domain.runs import EvaluationOrder, EvaluationRun, RunOutcome, exact_name
from checkpoint_registry.domain.watches import (
    WatchedHead,
    WatchRun,
    WatchState,
    is_within,
    newcomers,
    pairs_of,
    watch_of,
)
from checkpoint_registry.ports import Clock, RewardAlarms, Tasksets
from checkpoint_registry.usecases.rollback import roll_back
from checkpoint_registry.usecases.watch_turns import Turn, WatchPolicy, WatchTurns
from identities.entities import watch_request_id
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_SEED_BITS = 62  # SamplingConfig.seed is an int64
_MAX_DETAIL_CHARS = 2000
_BESIDE_TRAINING = 2
"""Episodes in flight at once while training goes on: one pair."""
_ALARMS_EVERY = timedelta(minutes=1)
"""Between two looks at the alarms of what a watched head played."""


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
        alarms: RewardAlarms | None = None,
    ) -> None:
        """alarms: of the monitors of reward hacks; None: the watch knows none."""
        self._alarms = alarms
        self._turns = WatchTurns(store, models, tasksets, policy, now=now)
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._policy = policy
        self._now = now
        # By model. After a restart alarms are asked for at once, and logged again.
        self._asked_at: dict[str, datetime] = {}
        self._open: dict[str, frozenset[tuple[str, str]]] = {}
        self._waits_for: dict[str, str] = {}
        # By model: the revision of head whose watch plays nothing until then. Its pairs are many after weeks.
        self._rests: dict[str, tuple[int, datetime]] = {}
        # By model: the revision of head before which no run is under way.
        self._ended_before: dict[str, int] = {}

    async def consider(self, model_name: str) -> HeadMove | None:
        """One look at a model: reads what ended, judges it, and orders more where nothing else waits."""
        if not self._policy.enabled:
            return None  # else each look would ask the database for nothing
        try:
            model = await self._models.model(model_name)
        except UnknownModel:
            return None
        await self._call_off_earlier(model)
        watched = await self._turns.watched(model)
        if isinstance(watched, str) or self._is_resting(watched):
            return None
        runs = await self._store.runs(model_name, model.head_revision)
        if runs and runs[-1].state is RequestState.SUBMITTED:
            await self._follow(runs[-1])
            await self._make_way(model_name, runs[-1].run_id)
            runs = await self._store.runs(model_name, model.head_revision)
        if (tasks := await self._turns.tasks(watched)) is not None:
            state = await asyncio.to_thread(watch_of, tasks.family_names, runs)
            if state.lost is not None:
                return await self._roll_back(model, watched, state, runs)
            await self._look_for_alarms(watched, runs)
            await self._play_more(watched, runs)
        return None

    async def collect(self, run_id: str) -> bool:
        """Reads a run that ended; False: it is no run of a watch."""
        run = await self._store.of_run(run_id)
        if run is None:
            return False
        if run.state is RequestState.SUBMITTED:
            await self._read_ended(run)
        return True

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

    async def _make_way(self, model: str, run_id: str) -> None:
        """Calls a run off when a training run begins beside it. None of its pairs count: those that ended by
        now are the short ones. It is no failure, so the watch goes on as soon as its share allows."""
        run = await self._store.of_run(run_id)
        if run is None or run.state is not RequestState.SUBMITTED:
            return
        if began := newcomers(run, await self._tasksets.trainings(model)):
            why = f"it made way for training run {', '.join(began)}"
            await self._call_off(run, why)
            log.info("watch_made_way", extra={"run_id": run_id, "model": model, "detail": why})

    async def _call_off(self, run: WatchRun, why: str) -> None:
        """None of its pairs count; it is no failure."""
        # What it took while nothing trained is not beside training.
        engine_s = await self._engine_s(run.run_id) if run.beside else 0.0
        with suppress(PeerRefused):
            await self._tasksets.cancel(run.run_id, why)
        await self._store.finish(run.run_id, (), engine_s, self._now())

    async def _call_off_earlier(self, model: Model) -> None:
        """Pairs of a head that is head no more say nothing of this one."""
        if self._ended_before.get(model.model) == model.head_revision:
            return
        for run in await self._store.open_before(model.model, model.head_revision):
            await self._call_off(run, f"head moved, to v{model.head_version}")
        self._ended_before[model.model] = model.head_revision

    async def _engine_s(self, run_id: str) -> float:
        """That a run took so far; 0 where the planner does not say."""
        with suppress(Unavailable, PeerRefused):
            found = await self._tasksets.run(run_id)
            return found.engine_s if found else 0.0
        return 0.0

    async def _read_ended(self, run: WatchRun) -> None:
        found = await self._tasksets.run(run.run_id)
        if found is None:
            await self._store.give_up(run.run_id, "the planner does not know it", self._now())
        elif found.outcome is RunOutcome.COMPLETED:
            found = await self._tasksets.run(run.run_id, include_results=True) or found
            await self._finish(run, found)
        elif found.outcome is RunOutcome.CANCELLED:
            await self._read_cancelled(run, found)
        elif found.outcome is not RunOutcome.UNFINISHED:
            why = found.failure or found.outcome.value
            await self._store.give_up(run.run_id, why, self._now(), engine_s=found.engine_s)

    async def _read_cancelled(self, run: WatchRun, found: EvaluationRun) -> None:
        """Maybe it was called off here, and that is not recorded yet."""
        engine_s = found.engine_s if run.beside else 0.0
        if newcomers(run, await self._tasksets.trainings(run.model)):
            await self._store.finish(run.run_id, (), engine_s, self._now())
        else:
            why = found.failure or found.outcome.value
            await self._store.give_up(run.run_id, why, self._now(), engine_s=engine_s)

    async def _finish(self, run: WatchRun, found: EvaluationRun) -> None:
        """Does not wait for alarms about the run: they may come much later, and none of them moves head."""
        job = await self._store.gate_of(run.model)
        by_shadow = job is not None and job.gate is not None and job.gate.by_shadow
        pairs = pairs_of(found.results, found.traps, by_shadow=by_shadow)
        if by_shadow and not pairs:
            why = "no pair of it has shadow grades on both sides"
            await self._store.give_up(run.run_id, why, self._now(), engine_s=found.engine_s)
            return
        source = found.source_digest
        await self._store.finish(run.run_id, pairs, found.engine_s, self._now(), source_digest=source)

    async def _look_for_alarms(self, watched: WatchedHead, runs: Sequence[WatchRun]) -> None:
        """Keeps with each run what the monitors of reward hacks say of it by now."""
        model, now = watched.job.model, self._now()
        if is_within(now, self._asked_at.get(model, now - _ALARMS_EVERY), _ALARMS_EVERY):
            return
        self._asked_at[model] = now
        try:
            await self._note_alarms(watched, runs)
        except Unavailable as error:
            log.warning("watch_without_alarms", extra={"model": model, "error": str(error)})

    async def _note_alarms(self, watched: WatchedHead, runs: Sequence[WatchRun]) -> OpenAlarms:
        """The open alarms of the pairs, and of the run that trained head. Raises Unavailable."""
        finished = [run for run in runs if run.state is RequestState.FINISHED]
        if self._alarms is None:
            return OpenAlarms()
        asked = [run.run_id for run in finished] + [watched.head.run_id] * bool(watched.head.run_id)
        found = await self._alarms.open_alarms(asked, self._now()) if asked else OpenAlarms()
        self._report(watched.job.model, found)
        for run in finished:
            said = found.of_run(run.run_id)[:_MAX_DETAIL_CHARS]
            if said != run.detail:
                await self._store.note_alarms(run.run_id, said)
        return found

    def _report(self, model: str, found: OpenAlarms) -> None:
        telemetry.WATCH_ALARMS.labels(model).set(len(found.alarms))
        before = self._open.get(model, frozenset())
        self._open[model] = frozenset((one.run_id, one.kind) for one in found.alarms)
        for one in found.alarms:
            if (one.run_id, one.kind) not in before:
                log.warning("watch_alarmed", extra={"run_id": one.run_id, "model": model, "alarm": str(one)})

    async def _give_up(self, run: WatchRun, why: str) -> None:
        with suppress(PeerRefused):
            await self._tasksets.cancel(run.run_id, why)
        engine_s = await self._engine_s(run.run_id)
        await self._store.give_up(run.run_id, why, self._now(), engine_s=engine_s)

    async def _play_more(self, watched: WatchedHead, runs: list[WatchRun]) -> None:
        if runs and runs[-1].state is RequestState.SUBMITTED:
            return
        model = watched.job.model
        turn = await self._turns.next(watched, runs)
        if turn.until is not None:
            self._rests[model] = watched.revision, min(turn.until, self._now() + _ALARMS_EVERY)
        elif turn.pairs:
            self._waits_for.pop(model, None)
            await self._order(watched, len(runs), turn)
        elif turn.on:
            self._note_wait(model, turn)

    def _is_resting(self, watched: WatchedHead) -> bool:
        revision, until = self._rests.get(watched.job.model, (0, self._now()))
        return revision == watched.revision and is_within(self._now(), until - _ALARMS_EVERY, _ALARMS_EVERY)

    def _note_wait(self, model: str, turn: Turn) -> None:
        """Says once what a watch waits for; again when that is something else."""
        if self._waits_for.get(model) != turn.on:
            self._waits_for[model] = turn.on
            log.info("watch_waits", extra={"model": model, "detail": turn.waits_for})

    async def _order(self, watched: WatchedHead, number: int, turn: Turn) -> None:
        order = self._order_of(watched, number, turn.pairs, is_beside=bool(turn.trainings))
        beside = tuple(one.run_id for one in turn.trainings)
        run_id, state, detail = "", RequestState.FAILED, ""
        try:
            run_id, state = await self._tasksets.submit(order), RequestState.SUBMITTED
        except PeerRefused as error:
            detail = str(error)
            # Submitted with other figures, before a crash or by another replica: beside what is not known.
            if run_id := await self._tasksets.unfinished(order):
                state, detail, beside = RequestState.SUBMITTED, "", ()
        ids = order.request_id, order.model, watched.revision, number, run_id
        await self._store.add(WatchRun(*ids, state, detail, self._now(), beside=beside))
        log.info("watch_ordered", extra={"request_id": order.request_id, "run_id": run_id, "detail": detail})

    def _order_of(
        self, watched: WatchedHead, number: int, num_pairs: int, *, is_beside: bool
    ) -> EvaluationOrder:
        request_id = watch_request_id(watched.job.model, watched.revision, number)
        digest = hashlib.sha256(request_id.encode()).digest()
        return EvaluationOrder(
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
            draws=num_pairs,
            max_concurrent=_BESIDE_TRAINING if is_beside else max(_BESIDE_TRAINING, self._policy.in_flight),
        )

    async def _roll_back(
        self, model: Model, watched: WatchedHead, state: WatchState, runs: Sequence[WatchRun]
    ) -> HeadMove | None:
        reason = _reason(watched, state)
        reason += (await self._alarmed(watched, runs))[:_MAX_DETAIL_CHARS]
        return await roll_back(self._models, model, watched.predecessor, reason, at=self._now())

    async def _alarmed(self, watched: WatchedHead, runs: Sequence[WatchRun]) -> str:
        """The end of a rollback's reason: the open alarms, and whether more may come."""
        try:
            found = await self._note_alarms(watched, runs)
        except Unavailable:
            kept = "; ".join(run.detail for run in runs if run.state is RequestState.FINISHED and run.detail)
            unasked = "; its alarms could not be read"
            return f"; open alarms: {kept}{unasked}" if kept else unasked
        said = f"; open alarms: {found}" if found.alarms else ""
        return f"{said}; more alarms may come: {found.unseen}" if found.unseen else said


def _reason(watched: WatchedHead, state: WatchState) -> str:
    """Of a rollback: over which pairs, and what they showed."""
    watch = state.lost or state.whole
    bet = watch.bets[watch.cause]
    since = ""
    if watch is state.changed:
        since = f" that its changed environment (source {state.source_digest[:12]}) judged"
    return (
        f"rolled back: over {watch.pairs} drawn pairs{since} v{watched.head.version} did worse than "
        f"v{watched.predecessor.version} before it ({watch.cause}: worse in {bet.worse}, better in "
        f"{bet.better}); an equal head is taken back with at most 1%"
    )
