"""The promotion gate's state machine: every step is one transaction, so a restart goes on where it stopped.

A model has one evaluation slot. The newest waiting candidate gets it; older ones that were never evaluated
are held as superseded. Judgements are made against a revision of head and count only while it is head.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from checkpoint_registry.domain.errors import HeadMoved
from checkpoint_registry.domain.evidence import Evaluation, Evidence, combine
from checkpoint_registry.domain.gate import GateRule, Verdict, is_significantly_worse, judge
from checkpoint_registry.domain.jobs import GATE_ACTOR, GateJob, GateSpec, JobPhase, Judgement
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, HeadMove, Model, checkpoint_id_of
from checkpoint_registry.ports import Clock, GateStore, ModelStore, Tasksets
from checkpoint_registry.usecases.evidence import EvaluationGivenUp, GatherEvidence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the deployment decides about the gate; the run's GateConfig decides the rest."""

    min_family_tasks: int = 8
    auto_rollback: bool = True
    rollback_confidence: float = 0.99


class RunGate:
    """Moves candidates through the gate, and head back when later evidence turns against it."""

    def __init__(
        self,
        store: GateStore,
        models: ModelStore,
        tasksets: Tasksets,
        evidence: GatherEvidence,
        policy: GatePolicy,
        *,
        now: Clock,
    ) -> None:
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._evidence = evidence
        self._policy = policy
        self._now = now

    async def record(self, checkpoint: Checkpoint, traceparent: str) -> bool:
        """Takes a saved checkpoint in. Safe to repeat. Raises UnknownModel, CheckpointConflict."""
        job = GateJob(
            checkpoint_id=checkpoint.checkpoint_id,
            model=checkpoint.model,
            version=checkpoint.version,
            run_id=checkpoint.run_id,
            phase=JobPhase.NEW,
            created_at=self._now(),
            traceparent=traceparent,
        )
        return await self._models.record_candidate(checkpoint, job)

    async def advance(self, model: str) -> bool:
        """Does what can be done now; True when it did something, so that there may be more to do at once."""
        fresh = await self._store.jobs(model, JobPhase.NEW)
        for job in fresh:
            await self._read_spec(job)
        running = await self._store.jobs(model, JobPhase.RUNNING)
        queued = await self._store.jobs(model, JobPhase.QUEUED)
        for job in queued[:-1]:
            reason = f"superseded by v{queued[-1].version} before it was evaluated"
            await self._store.hold(job.checkpoint_id, reason, self._now())
        if running:
            return await self._advance_running(running[0])
        return await self._store.start_job(queued[-1].checkpoint_id) if queued else bool(fresh)

    async def consider_rollback(self, evaluation: Evaluation) -> HeadMove | None:
        """Takes head back to where it came from when fresh evidence shows that it is worse than that.

        Only what the gate promoted is taken back; a head that a person set stays where the person put it.
        """
        if not self._policy.auto_rollback:
            return None
        head = await self._models.checkpoint(evaluation.checkpoint_id)
        model = await self._models.model(head.model)
        moves = await self._models.head_moves(head.model)
        if model.head_checkpoint_id != head.checkpoint_id or not moves:
            return None
        promotion = moves[-1]
        job = await self._store.job(head.checkpoint_id)
        if not _is_gated(promotion, head, job, evaluation):
            return None
        previous, now = await self._both_sides(promotion, evaluation)
        worse = await asyncio.to_thread(
            is_significantly_worse, now, previous, self._policy.rollback_confidence
        )
        if not worse:
            return None
        return await self._roll_back(model, promotion, now, previous)

    async def _both_sides(self, promotion: HeadMove, evaluation: Evaluation) -> tuple[Evidence, Evidence]:
        """Of the head before, and of head since it was promoted: what promoted it was the best of many."""
        digest, profile = evaluation.taskset_digest, evaluation.profile_key
        before = await self._store.evaluations(promotion.from_checkpoint_id, digest, profile)
        since = [
            run
            for run in await self._store.evaluations(promotion.to_checkpoint_id, digest, profile)
            if run.finished_at > promotion.moved_at
        ]
        return combine(promotion.from_checkpoint_id, before), combine(promotion.to_checkpoint_id, since)

    async def _roll_back(
        self, model: Model, promotion: HeadMove, now: Evidence, previous: Evidence
    ) -> HeadMove | None:
        target = await self._models.checkpoint(promotion.from_checkpoint_id)
        reason = (
            f"evidence turned: v{model.head_version} now succeeds on {_rate(now):.1%}, "
            f"v{target.version} before it on {_rate(previous):.1%}; runs {', '.join(now.run_ids)}"
        )
        try:
            return await self._models.move_head(
                target,
                expected_revision=model.head_revision,
                actor=GATE_ACTOR,
                reason=reason,
                at=self._now(),
            )
        except HeadMoved:
            log.info("rollback_dropped_head_moved", extra={"model": model.model})
            return None

    async def _read_spec(self, job: GateJob) -> None:
        """NEW to QUEUED with the gate that the run asks for, or done when it asks for none."""
        run = await self._tasksets.run(job.run_id)
        if run is None:
            await self._store.close_ungated(
                job.checkpoint_id, f"run {job.run_id!r} is unknown, so nothing judges it"
            )
            return
        if run.gate is None:
            reason = f"run {job.run_id} asks for no gate; promote by hand with SetHead"
            await self._store.close_ungated(job.checkpoint_id, reason)
            return
        taskset = await self._tasksets.taskset(run.gate.taskset)
        if taskset is None or not taskset.is_held_out:
            why = "is not registered" if taskset is None else "is not held out"
            await self._store.hold(job.checkpoint_id, f"gate taskset {run.gate.taskset!r} {why}", self._now())
            return
        queued = replace(
            job, phase=JobPhase.QUEUED, gate=run.gate, profile=run.profile, taskset_digest=taskset.digest
        )
        await self._store.save_job(queued, was=JobPhase.NEW)

    async def _advance_running(self, job: GateJob) -> bool:
        if job.gate is None:
            raise ValueError(f"gate job of {job.checkpoint_id} runs without a gate")
        model = await self._models.model(job.model)
        candidate = await self._models.checkpoint(job.checkpoint_id)
        if candidate.state is CheckpointState.PROMOTED:
            await self._store.close_ungated(job.checkpoint_id, candidate.reason)
            return True
        try:
            mine = await self._evidence.ensure(candidate, job, job.gate)
            head = await self._models.checkpoint(model.head_checkpoint_id)
            other = await self._evidence.ensure(head, job, job.gate)
        except EvaluationGivenUp as error:
            await self._store.hold(job.checkpoint_id, str(error), self._now())
            return True
        if mine is None or other is None:
            return False
        return await self._conclude(job, job.gate, model, mine, other)

    async def _conclude(
        self, job: GateJob, gate: GateSpec, model: Model, mine: Evidence, other: Evidence
    ) -> bool:
        verdict = await self._verdict(job, gate, model, mine, other)
        judgement = Judgement(
            candidate_checkpoint_id=job.checkpoint_id,
            head_checkpoint_id=model.head_checkpoint_id,
            head_revision=model.head_revision,
            gate=gate,
            taskset_digest=job.taskset_digest,
            candidate_run_id=mine.run_ids[-1],
            head_run_id=other.run_ids[-1],
            verdict=verdict,
        )
        try:
            await self._store.conclude(judgement, self._now())
        except HeadMoved as error:
            log.info("judged_again", extra={"checkpoint_id": job.checkpoint_id, "why": str(error)})
        return True

    async def _verdict(
        self, job: GateJob, gate: GateSpec, model: Model, mine: Evidence, other: Evidence
    ) -> Verdict:
        rule = GateRule(
            confidence=gate.confidence,
            regression_margin=gate.regression_margin,
            min_gain=gate.min_gain,
            min_family_tasks=self._policy.min_family_tasks,
        )
        verdict = await asyncio.to_thread(judge, mine, other, rule)
        if verdict.passed and job.version < model.head_version:
            reason = f"held: older than head v{model.head_version}; {verdict.reason}"
            return replace(verdict, passed=False, reason=reason)
        return verdict


def _is_gated(promotion: HeadMove, head: Checkpoint, job: GateJob | None, evaluation: Evaluation) -> bool:
    """Whether the evaluation is fresh evidence about a promotion that the gate made on this taskset."""
    return (
        promotion.actor == GATE_ACTOR
        and promotion.to_checkpoint_id == head.checkpoint_id
        and promotion.from_checkpoint_id < checkpoint_id_of(head.model, head.version)
        and job is not None
        and job.taskset_digest == evaluation.taskset_digest
        and evaluation.finished_at > promotion.moved_at
    )


def _rate(evidence: Evidence) -> float:
    successes = sum(tally.successes for tally in evidence.tallies.values())
    return successes / evidence.attempts
