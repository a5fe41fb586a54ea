"""Evidence: reads finished evaluation runs, and asks for the ones that are missing."""

import hashlib
import logging
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.errors import PeerRefused, UnknownCheckpoint, UnknownModel
from checkpoint_registry.domain.evidence import Evaluation, Evidence, combine
from checkpoint_registry.domain.jobs import EvaluationRequest, GateJob, GateSpec, RequestState
from checkpoint_registry.domain.models import Checkpoint
from checkpoint_registry.domain.runs import (
    EvaluationOrder,
    EvaluationRun,
    RunOutcome,
    exact_name,
    tally,
    version_measured,
)
from checkpoint_registry.ports import Clock, Tasksets
from identities.entities import gate_request_id
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

# SamplingConfig.seed is an int64; a seed taken from the taskset gives both versions of a pair the same seeds.
_SEED_BITS = 62


class EvaluationGivenUp(Exception):
    """All tries of an evaluation failed; the message says how the last one did."""


@dataclass(frozen=True, slots=True)
class EvidencePolicy:
    """Retry limits for evidence runs."""

    max_tries: int = 3
    deadline_s: float = 6 * 3600.0  # of one evaluation run
    first_retry_s: float = 2.0  # doubles per try


class GatherEvidence:
    """One place that turns runs into evidence. All of it is idempotent by run id and request id."""

    def __init__(
        self,
        store: SqlGateStore,
        models: SqlModelStore,
        tasksets: Tasksets,
        policy: EvidencePolicy,
        *,
        now: Clock,
    ) -> None:
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._policy = policy
        self._now = now

    async def collect(self, run_id: str) -> Evaluation | None:
        """Stores a finished evaluation. None if its episodes do not all come from one known version."""
        if await self._store.has_evaluation(run_id):  # maybe from before a crash, and the request from after
            await self._store.close_request(run_id, RequestState.FINISHED, "", self._now())
            return None
        run = await self._tasksets.run(run_id)
        if run is not None and run.outcome is RunOutcome.UNFINISHED:
            return None  # asked at each poll: without its results, which may be thousands
        run = await self._tasksets.run(run_id, include_results=True) if run is not None else None
        unknown = f"the planner knows no run {run_id!r}"
        evaluation, problem = await self._read(run) if run is not None else (None, unknown)
        if evaluation is None:
            log.info("evaluation_is_no_evidence", extra={"run_id": run_id, "reason": problem})
            await self._store.close_request(run_id, RequestState.FAILED, problem, self._now())
            return None
        await self._store.add_evaluation(evaluation)
        return evaluation

    async def known(self, checkpoint_id: str, job: GateJob) -> Evidence:
        """What is stored about a checkpoint on the job's taskset under the job's sampling profile, as the
        source judged it that judged last: what an edited environment measured before its edit is left out."""
        profile_key = job.profile.key() if job.profile else ""
        found = await self._store.evaluations(checkpoint_id, job.taskset_digest, profile_key)
        newest = await self._store.newest_source(job.taskset_digest, profile_key)
        return combine(checkpoint_id, found, newest)

    async def ensure(self, checkpoint: Checkpoint, job: GateJob, gate: GateSpec) -> Evidence | None:
        """Enough evidence, or None while a run for it is under way. Raises EvaluationGivenUp."""
        evidence = await self.known(checkpoint.checkpoint_id, job)
        if evidence.is_enough(gate.attempts):
            return evidence
        profile_key = job.profile.key() if job.profile else ""
        tries = await self._store.requests(checkpoint.checkpoint_id, job.taskset_digest, profile_key)
        if tries and tries[-1].state is RequestState.SUBMITTED:
            await self._follow(tries[-1])
            return None
        # What failed of head for an earlier candidate does not count: it would hold every later one.
        failed = [one for one in tries if one.updated_at >= job.created_at]
        if len(failed) >= self._policy.max_tries:
            raise EvaluationGivenUp(self._why_given_up(checkpoint, gate, evidence, failed[-1]))
        if failed and self._now() < failed[-1].updated_at + self._backoff(len(failed)):
            return None
        await self._submit(checkpoint, job, gate, len(tries))
        return None

    async def _follow(self, request: EvaluationRequest) -> None:
        """Reads a run that was ordered. Its request ends with the run, a refusal, or the deadline."""
        run_id = request.run_id
        is_late = self._now() >= request.updated_at + timedelta(seconds=self._policy.deadline_s)
        try:
            # Unavailable may be about this run alone, each time: its results take too long, or meet a bug.
            with suppress(Unavailable) if is_late else nullcontext():
                await self.collect(run_id)
            if not is_late:
                return
            why = f"run {run_id} did not end within {self._policy.deadline_s:g} s"
            await self._tasksets.cancel(run_id, why)
        except PeerRefused as error:
            why = str(error)
        await self._store.close_request(run_id, RequestState.FAILED, why, self._now())

    async def _submit(self, checkpoint: Checkpoint, job: GateJob, gate: GateSpec, attempt: int) -> None:
        assert job.profile is not None  # noqa: S101 - a job is QUEUED only with gate and profile
        profile_key = job.profile.key()
        request_id = gate_request_id(
            checkpoint.checkpoint_id, job.taskset_digest, profile_key, gate.attempts, attempt
        )
        order = EvaluationOrder(
            request_id=request_id,
            model=checkpoint.model,
            version=checkpoint.version,
            taskset=exact_name(gate.taskset, job.taskset_revision),
            attempts=gate.attempts,
            profile=job.profile,
            seed=_seed(job.taskset_digest, attempt),
            label=f"gate {checkpoint.model}@v{checkpoint.version}",
            episode_deadline_s=await self._episode_deadline_s(job),
        )
        run_id, state, detail = await self._order(order)
        request = EvaluationRequest(
            request_id,
            checkpoint.checkpoint_id,
            job.taskset_digest,
            profile_key,
            attempt,
            run_id,
            state,
            detail,
            self._now(),
        )
        await self._store.add_request(request)
        log.info("evaluation_requested", extra={"request_id": request_id, "run_id": run_id, "detail": detail})

    async def _episode_deadline_s(self, job: GateJob) -> int:
        """That of the run that asks for the gate: its episodes may take as long there."""
        with suppress(PeerRefused):
            run = await self._tasksets.run(job.run_id)
            return run.episode_deadline_s if run is not None else 0
        return 0

    async def _order(self, order: EvaluationOrder) -> tuple[str, RequestState, str]:
        """A refusal counts as a failed try; an outage propagates and costs none."""
        try:
            return await self._tasksets.submit(order), RequestState.SUBMITTED, ""
        except PeerRefused as error:
            return "", RequestState.FAILED, str(error)

    async def _read(self, run: EvaluationRun) -> tuple[Evaluation | None, str]:
        if not run.is_evaluation or run.outcome is not RunOutcome.COMPLETED:
            how = run.outcome.value if run.is_evaluation else "is no evaluation"
            return None, f"run {run.run_id} {how}: {run.failure or 'no reason given'}"
        taskset = await self._tasksets.taskset(exact_name(run.taskset, run.taskset_revision))
        if taskset is None or taskset.digest != run.taskset_digest:
            return None, f"taskset {run.taskset!r} is no longer what run {run.run_id} was made of"
        if not taskset.is_held_out:
            return None, f"taskset {run.taskset!r} is not held out"
        checkpoint = await self._measured(run)
        if checkpoint is None:
            return None, f"run {run.run_id} measured no single version that the registry holds"
        tallies = tally(run.results)
        if not any(one.attempts for one in tallies.values()):
            return None, f"run {run.run_id} graded none of its {len(run.results)} episodes"
        evaluation = Evaluation(
            run_id=run.run_id,
            checkpoint_id=checkpoint.checkpoint_id,
            taskset=run.taskset,
            taskset_digest=run.taskset_digest,
            profile_key=run.profile.key(),
            num_tasks=max(taskset.num_tasks, len(tallies)),
            tallies=tallies,
            finished_at=run.finished_at or self._now(),
            source_digest=run.source_digest,
        )
        return evaluation, ""

    async def _measured(self, run: EvaluationRun) -> Checkpoint | None:
        version = version_measured(run)
        if version is None:
            return None
        try:
            return await self._models.version(run.model, version)
        except (UnknownModel, UnknownCheckpoint):
            return None

    def _backoff(self, tries: int) -> timedelta:
        return timedelta(seconds=self._policy.first_retry_s * 2.0 ** (tries - 1))

    def _why_given_up(
        self, checkpoint: Checkpoint, gate: GateSpec, evidence: Evidence, last: EvaluationRequest
    ) -> str:
        how = last.detail or evidence.shortage(gate.attempts)
        return (
            f"no evaluation of {checkpoint.model}@v{checkpoint.version} on {gate.taskset!r} succeeded in "
            f"{self._policy.max_tries} tries; the last: {how}"
        )


def _seed(taskset_digest: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{taskset_digest}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)
