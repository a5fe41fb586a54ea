"""The promotion gate's state machine: every step is one transaction, so a restart goes on where it stopped.

A model has one evaluation at a time. The newest waiting candidate is next; older ones that were never
evaluated are held as superseded. A judgement counts only while the head that it was made against is head.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.errors import HeadMoved, PeerRefused
from checkpoint_registry.domain.evidence import Evidence, SamplingProfile
from checkpoint_registry.domain.gate import GateRule, Verdict, judge
from checkpoint_registry.domain.jobs import GateJob, GateSpec, JobPhase, Judgement
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, Model
from checkpoint_registry.ports import Clock, Tasksets
from checkpoint_registry.usecases.evidence import EvaluationGivenUp, GatherEvidence
from identities.entities import interactive_run_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the deployment decides about the gate; the run's GateConfig decides the rest."""

    min_family_tasks: int = 8


class RunGate:
    """Moves candidates through the gate."""

    def __init__(
        self,
        store: SqlGateStore,
        models: SqlModelStore,
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

    async def record(self, checkpoint: Checkpoint, traceparent: str, *, keeps_head: bool = False) -> bool:
        """Takes a saved checkpoint in; keeps_head: without judging it. Safe to repeat. Raises UnknownModel,
        VersionConflict."""
        job = GateJob(
            checkpoint_id=checkpoint.checkpoint_id,
            model=checkpoint.model,
            version=checkpoint.version,
            run_id=checkpoint.run_id,
            phase=JobPhase.DONE if keeps_head else JobPhase.NEW,
            created_at=self._now(),
            traceparent=traceparent,
        )
        if keeps_head:
            checkpoint = replace(checkpoint, reason="its client keeps head where it is, so no gate judges it")
        return await self._models.record_candidate(checkpoint, job)

    async def advance(self, model: str) -> bool:
        """Does what can be done now; True when it did something, so that there may be more to do at once."""
        fresh = await self._store.jobs(model, JobPhase.NEW)
        for job in fresh:
            try:
                await self._read_spec(job)
            except PeerRefused as error:
                await self._store.hold(job.checkpoint_id, f"its gate cannot be read: {error}", self._now())
        running = await self._store.jobs(model, JobPhase.RUNNING)
        queued = await self._store.jobs(model, JobPhase.QUEUED)
        for job in queued[:-1]:
            reason = f"superseded by v{queued[-1].version} before it was evaluated"
            await self._store.hold(job.checkpoint_id, reason, self._now())
        if running:
            return await self._advance_running(running[0])
        return await self._store.start_job(queued[-1].checkpoint_id) if queued else bool(fresh)

    async def _read_spec(self, job: GateJob) -> None:
        """NEW to QUEUED with the gate that the run asks for, or done when it asks for none. What interactive
        training saves is judged by the gate that the model's runs asked for last."""
        if job.run_id == interactive_run_id(job.model):
            await self._read_interactive(job)
            return
        run = await self._tasksets.run(job.run_id)
        if run is None:
            await self._store.close_ungated(
                job.checkpoint_id, f"run {job.run_id!r} is unknown, so there is no gate to judge it by"
            )
            return
        if run.gate is None:
            command = f"upcycle models head {job.model} --set {job.checkpoint_id}"
            reason = f"run {job.run_id} asks for no gate; promote it with {command}"
            await self._store.close_ungated(job.checkpoint_id, reason)
            return
        await self._queue(job, run.gate, run.profile)

    async def _queue(self, job: GateJob, gate: GateSpec, profile: SamplingProfile | None) -> None:
        taskset = await self._tasksets.taskset(gate.taskset)
        if taskset is None or not taskset.is_held_out:
            why = "is not registered" if taskset is None else "is not held out"
            await self._store.hold(job.checkpoint_id, f"gate taskset {gate.taskset!r} {why}", self._now())
            return
        queued = replace(
            job,
            phase=JobPhase.QUEUED,
            gate=gate,
            profile=profile,
            taskset_digest=taskset.digest,
            taskset_revision=taskset.revision,
        )
        await self._store.save_job(queued, was=JobPhase.NEW)

    async def _read_interactive(self, job: GateJob) -> None:
        newest = await self._store.newest_gate(job.model)
        if newest is None or newest.gate is None:
            reason = "no run of the model asked for a gate, so interactive training moves head itself"
            await self._store.close_ungated(job.checkpoint_id, reason)
            return
        await self._queue(job, newest.gate, newest.profile)

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
        if mine is None or other is None or mine.source_digest != other.source_digest:
            return False  # the environment was edited in between: the next look orders what is missing
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
            if verdict.passed:
                await self._store.promote(judgement, self._now())  # the one place where the gate moves head
            else:
                await self._store.hold_judged(judgement, self._now())
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
