"""Plays a candidate and head side by side, look by look, until the decision is final.

Every step is idempotent by request id and run id, and what is stored says how far a judgement is.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.domain.errors import PeerRefused
from checkpoint_registry.domain.jobs import GateJob, GateSpec, RequestState
from checkpoint_registry.domain.models import Checkpoint
from checkpoint_registry.domain.pairs import (
    NextPairs,
    PairRun,
    by_task,
    evidence_key,
    head_records,
    joined,
    next_pairs,
    of_one_source,
)
from checkpoint_registry.domain.runs import EvaluationOrder, EvaluationRun, RunOutcome, exact_name
from checkpoint_registry.ports import Clock, Tasksets
from identities.entities import checkpoint_id, pair_request_id
from upcycle.errors import Unavailable
from upcycle.gate.baseline import Baseline, best_heads
from upcycle.gate.decision import Decision, Verdict, decide
from upcycle.gate.outcomes import Outcomes, TaskCount, TaskOutcomes
from upcycle.gate.words import reason_of
from upcycle.wording import amount

log = logging.getLogger(__name__)

_SEED_BITS = 62  # SamplingConfig.seed is an int64


class PairsGivenUp(Exception):
    """No more runs are tried; the message says how the last one failed."""


@dataclass(frozen=True, slots=True)
class PairPolicy:
    """Limits of the runs that play a pair."""

    max_tries: int = 3  # in a row
    deadline_s: float = 6 * 3600.0  # of one run
    first_retry_s: float = 2.0  # doubles per try


@dataclass(frozen=True, slots=True)
class PairUnderTest:
    """A candidate and the head that it is judged against, with what its run asks."""

    job: GateJob
    gate: GateSpec
    candidate: Checkpoint
    head: Checkpoint


@dataclass(frozen=True, slots=True)
class Decided:
    """A final decision, and the runs that it rests on. finished_at: of the last of them."""

    decision: Decision
    run_ids: tuple[str, ...]
    finished_at: datetime


class PlayPairs:
    """Orders, follows and reads the runs of judgements."""

    def __init__(self, store: SqlPairStore, tasksets: Tasksets, policy: PairPolicy, *, now: Clock) -> None:
        self._store = store
        self._tasksets = tasksets
        self._policy = policy
        self._now = now
        # The tasks of the set that was asked for last; forgetting them costs a call.
        self._families: tuple[str, Mapping[str, str]] = ("", {})

    async def look(self, pair: PairUnderTest) -> Decided | None:
        """The decision, or None while something is to be played for it. Raises PairsGivenUp."""
        runs = await self._runs(pair.job)
        if runs and runs[-1].state is RequestState.SUBMITTED:
            await self._follow(runs[-1])
            runs = await self._runs(pair.job)
            if runs[-1].state is RequestState.SUBMITTED:
                return None
        failed = _failed_last(runs)
        if len(failed) >= self._policy.max_tries:
            raise PairsGivenUp(self._why_given_up(pair, failed[-1]))
        played = of_one_source(runs)
        outcomes = joined(await self._tasks(pair.job, pair.gate), played)
        assert pair.job.level is not None  # noqa: S101 - a judgement begins with it
        best, base = await self._others(pair, played)
        rule, level = pair.gate.rule(), pair.job.level
        decision = await asyncio.to_thread(decide, outcomes, rule, level, best, base)
        if decision.verdict is not Verdict.CONTINUE:
            finished_at = max((run.updated_at for run in played), default=self._now())
            return Decided(decision, tuple(run.run_id for run in played), finished_at)
        if not failed or self._now() >= failed[-1].updated_at + self._backoff(len(failed)):
            await self._play_more(pair, decision, outcomes, number=len(runs))
        return None

    async def collect(self, run_id: str) -> bool:
        """Reads a run that ended; False: it is no pair of a gate."""
        pair = await self._store.of_run(run_id)
        if pair is None:
            return False
        if pair.state is RequestState.SUBMITTED:
            await self._read_ended(pair)
        return True

    async def was_looked_at(self, job: GateJob) -> bool:
        """Whether anything of the judgement was played to its end."""
        return any(run.state is RequestState.FINISHED for run in await self._runs(job))

    async def call_off(self, job: GateJob, why: str) -> None:
        """Cancel what is still played for a judgement that is void."""
        for run in await self._runs(job):
            if run.state is RequestState.SUBMITTED:
                with suppress(PeerRefused):
                    await self._tasksets.cancel(run.run_id, why)
                await self._store.give_up(run.run_id, why, self._now())

    async def _runs(self, job: GateJob) -> list[PairRun]:
        return await self._store.of_judgement(job.checkpoint_id, job.head_revision)

    async def _others(
        self, pair: PairUnderTest, played: Sequence[PairRun]
    ) -> tuple[Mapping[str, Baseline], Mapping[str, TaskCount]]:
        """The best head so far by family, and the model's base version by task: as what judges now judged
        them while they were head."""
        if not played or pair.job.profile is None:
            return {}, {}
        job, source = pair.job, played[-1].source_digest
        runs = await self._store.of_heads(
            job.model, job.taskset_digest, evidence_key(pair.job.profile, pair.gate)
        )
        records = head_records(run for run in runs if run.source_digest == source)
        base = next((one for one in records if one.checkpoint == checkpoint_id(job.model, 0)), None)
        best = best_heads(records, pair.head.checkpoint_id)
        return best, {} if base is None else base.tallies

    async def _tasks(self, job: GateJob, gate: GateSpec) -> Mapping[str, str]:
        """Family by task of the held-out set that the job is judged on."""
        if self._families[0] != job.taskset_digest:
            name = exact_name(gate.taskset, job.taskset_revision)
            found = await self._tasksets.taskset(name)
            if found is None or found.digest != job.taskset_digest:
                raise PairsGivenUp(f"held-out taskset {name!r} is no longer what the gate began with")
            self._families = job.taskset_digest, found.families
        return self._families[1]

    async def _follow(self, run: PairRun) -> None:
        """Reads a run that was ordered. It ends with the run, a refusal, or the deadline."""
        is_late = self._now() >= run.updated_at + timedelta(seconds=self._policy.deadline_s)
        try:
            # Unavailable may be about this run alone, each time: its results take too long, or meet a bug.
            with suppress(Unavailable) if is_late else nullcontext():
                await self._read_ended(run)
            if not is_late:
                return
            why = f"run {run.run_id} did not end within {self._policy.deadline_s:g} s"
            await self._tasksets.cancel(run.run_id, why)
        except PeerRefused as error:
            why = str(error)
        await self._store.give_up(run.run_id, why, self._now())

    async def _read_ended(self, pair: PairRun) -> None:
        run = await self._tasksets.run(pair.run_id)
        if run is not None and run.outcome is RunOutcome.UNFINISHED:
            return  # asked at each poll: without its results, which may be thousands
        run = await self._tasksets.run(pair.run_id, include_results=True) if run is not None else None
        outcomes = by_task(run.results, pair.attempts, by_shadow=pair.by_shadow) if run is not None else {}
        problem = _problem(pair, run, outcomes)
        if problem or run is None:
            log.info("pair_is_no_evidence", extra={"run_id": pair.run_id, "reason": problem})
            await self._store.give_up(pair.run_id, problem, self._now())
            return
        await self._store.finish(pair.run_id, outcomes, run.source_digest, run.finished_at or self._now())

    async def _play_more(
        self, pair: PairUnderTest, decision: Decision, outcomes: Outcomes, *, number: int
    ) -> None:
        wanted = next_pairs(outcomes, decision.more)
        order = self._order(pair, wanted, number, await self._episode_deadline_s(pair.job))
        run_id, state, detail = await self._submit(order)
        await self._store.add(
            PairRun(
                request_id=order.request_id,
                checkpoint_id=pair.candidate.checkpoint_id,
                model=pair.job.model,
                head_checkpoint_id=pair.head.checkpoint_id,
                head_revision=pair.job.head_revision,
                number=number,
                families=wanted.families,
                attempts=wanted.attempts,
                taskset=pair.gate.taskset,
                taskset_digest=pair.job.taskset_digest,
                profile_key=evidence_key(order.profile, pair.gate),
                run_id=run_id,
                state=state,
                detail=detail,
                updated_at=self._now(),
            )
        )
        said = reason_of(decision, pair.gate.rule(), by_shadow=pair.gate.by_shadow)
        await self._store.note(pair.candidate.checkpoint_id, said)
        log.info("pair_ordered", extra={"request_id": order.request_id, "run_id": run_id, "detail": detail})

    def _order(
        self, pair: PairUnderTest, wanted: NextPairs, number: int, episode_deadline_s: int
    ) -> EvaluationOrder:
        job = pair.job
        assert job.profile is not None  # noqa: S101 - a job is QUEUED only with gate and profile
        request_id = pair_request_id(job.checkpoint_id, job.head_revision, number)
        return EvaluationOrder(
            request_id=request_id,
            model=job.model,
            version=pair.candidate.version,
            against_version=pair.head.version,
            taskset=exact_name(pair.gate.taskset, job.taskset_revision),
            families=wanted.families,
            attempts=wanted.attempts,
            profile=job.profile,
            seed=_seed(request_id),
            label=f"gate {job.model}@v{pair.candidate.version} against v{pair.head.version}",
            episode_deadline_s=episode_deadline_s,
        )

    async def _episode_deadline_s(self, job: GateJob) -> int:
        """That of the run that asks for the gate: its episodes may take as long there."""
        with suppress(PeerRefused):
            run = await self._tasksets.run(job.run_id)
            return run.episode_deadline_s if run is not None else 0
        return 0

    async def _submit(self, order: EvaluationOrder) -> tuple[str, RequestState, str]:
        """A refusal counts as a failed try; an outage propagates and costs none."""
        try:
            return await self._tasksets.submit(order), RequestState.SUBMITTED, ""
        except PeerRefused as error:
            return "", RequestState.FAILED, str(error)

    def _backoff(self, tries: int) -> timedelta:
        return timedelta(seconds=self._policy.first_retry_s * 2.0 ** (tries - 1))

    def _why_given_up(self, pair: PairUnderTest, last: PairRun) -> str:
        versions = f"v{pair.candidate.version} and v{pair.head.version}"
        return (
            f"no evaluation of {versions} side by side on {pair.gate.taskset!r} succeeded in "
            f"{self._policy.max_tries} tries; the last: {last.detail}"
        )


def _failed_last(runs: Sequence[PairRun]) -> list[PairRun]:
    """The runs that failed since one succeeded."""
    failed: list[PairRun] = []
    for run in runs:
        failed = [*failed, run] if run.state is RequestState.FAILED else []
    return failed


def _problem(pair: PairRun, run: EvaluationRun | None, outcomes: Mapping[str, TaskOutcomes]) -> str:
    """Why a run is no evidence; empty where it is."""
    if run is None:
        return f"the planner knows no run {pair.run_id!r}"
    if run.outcome is not RunOutcome.COMPLETED:
        return f"run {run.run_id} {run.outcome.value}: {run.failure or 'no reason given'}"
    if run.taskset_digest != pair.taskset_digest:
        return f"run {run.run_id} played another taskset than the gate's"
    sides = (run.pinned_version, run.against_version)
    for result in run.results:
        wanted = sides[result.member % 2]
        if result.graded and {result.oldest_version, result.newest_version} != {wanted}:
            return f"run {run.run_id} sampled {result.task_slug!r} with another version than v{wanted}"
    if all(one is None for task in outcomes.values() for one in (*task.candidate, *task.head)):
        num_graded = sum(one.graded for one in run.results)
        if pair.by_shadow and num_graded:
            return (
                f"none of the {amount(num_graded, 'graded episode')} of run {run.run_id} has a shadow grade, "
                "by which the gate judges: give grades a subscore of weight 0 whose name begins with "
                "'shadow', or leave gate.by_shadow out"
            )
        return f"run {run.run_id} graded none of its {len(run.results)} episodes"
    return ""


def _seed(request_id: str) -> int:
    digest = hashlib.sha256(request_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)
