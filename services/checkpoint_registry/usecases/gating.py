"""The promotion gate's state machine: every step is one transaction, so a restart goes on where it stopped.

A model has one evaluation at a time. The newest waiting candidate is next; older ones that were never
evaluated are held as superseded. A candidate is judged on what it and head did side by side, at a level that
its run has left. A judgement counts only while the head that it was made against is head.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.domain.bars import bar_of
from checkpoint_registry.domain.errors import HeadMoved, PeerRefused
from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.jobs import GateJob, GateSpec, JobPhase, Judgement
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, Model
from checkpoint_registry.domain.open_alarms import OpenAlarms
from checkpoint_registry.ports import Clock, RewardAlarms, Tasksets
from checkpoint_registry.usecases.pairing import Decided, PairsGivenUp, PairUnderTest, PlayPairs
from identities.entities import interactive_run_id
from upcycle.errors import Unavailable
from upcycle.gate.decision import Verdict
from upcycle.gate.errors import BadGateRule
from upcycle.gate.spending import AlphaWealth
from upcycle.gate.words import PASSED_AND_WAITS, reason_of

log = logging.getLogger(__name__)

_CLOCKS_DIFFER = timedelta(seconds=2)
"""The planner says when a run ended, the bus when its facts were stored: so much their clocks may differ."""
_MONITORS_WAIT = timedelta(hours=1)
"""So long after its last run ended a candidate that passed waits for the monitors of reward hacks, or for the
store that keeps their alarms; then it is held. Counted from a stored moment: a restart makes it no longer."""
_PEERS_START = timedelta(minutes=1)
"""So long after its own start the gate holds nothing because the store does not answer: where the whole
platform was off for a night, the store may be the last to start."""
_AFTER = f"after {_MONITORS_WAIT.total_seconds():g} s"
_NOT_SEEN = f"held: evidence incomplete: monitors of reward hacks have not seen all of its episodes; {_AFTER}"
_NOT_READ = f"held: evidence incomplete: alarms of its runs could not be read; {_AFTER}"
_AWAITS_MONITORS = f"{PASSED_AND_WAITS} until the monitors of reward hacks have seen all of its episodes"
_AWAITS_STORE = f"{PASSED_AND_WAITS} for trajectory_store, which does not answer"


class RunGate:
    """Moves candidates through the gate."""

    def __init__(
        self,
        store: SqlGateStore,
        models: SqlModelStore,
        levels: SqlPairStore,
        tasksets: Tasksets,
        pairs: PlayPairs,
        *,
        now: Clock,
        alarms: RewardAlarms | None = None,
    ) -> None:
        """alarms: of the monitors of reward hacks, with what people reviewed; None: none hold a promotion."""
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._levels = levels
        self._pairs = pairs
        self._now = now
        self._alarms = alarms
        self._began = now()

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
        if await self._advance_reviewed(model):
            return True
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
        if run.ended_by_drops:
            reason = f"held: two drops of a tracked set ended run {job.run_id}: {run.failure}"
            await self._store.hold(job.checkpoint_id, reason, self._now())
            return
        await self._queue(job, run.gate, run.profile)

    async def _queue(self, job: GateJob, gate: GateSpec, profile: SamplingProfile | None) -> None:
        if await self._is_barred(job):
            return
        taskset = await self._tasksets.taskset(gate.taskset)
        if taskset is None or not taskset.is_held_out:
            why = "is not registered" if taskset is None else "is not held out"
            await self._store.hold(job.checkpoint_id, f"gate taskset {gate.taskset!r} {why}", self._now())
            return
        try:
            gate.rule().check_families(taskset.families.values())
        except BadGateRule as error:  # the planner checked the revision of its day
            await self._store.hold(job.checkpoint_id, f"its gate cannot be kept: {error}", self._now())
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

    async def _is_barred(self, job: GateJob) -> bool:
        """Holds a candidate that descends from a version which was rolled back."""
        moves = await self._models.head_moves(job.model)
        if all(move.is_forward for move in moves):
            return False
        parents = {
            one.checkpoint_id: one.parent_checkpoint_id for one in await self._models.checkpoints(job.model)
        }
        move = bar_of(job.checkpoint_id, moves, parents)
        if move is None:
            return False
        when = f"{move.moved_at:%Y-%m-%d %H:%M} UTC"
        command = f"upcycle models head {job.model} --set {job.checkpoint_id}"
        reason = (
            f"held: trained from {move.from_checkpoint_id}, which was rolled back at {when}; a run that is "
            f"submitted now begins from head, and {command} makes this one head nevertheless"
        )
        await self._store.hold(job.checkpoint_id, reason, self._now())
        return True

    async def _read_interactive(self, job: GateJob) -> None:
        newest = await self._store.newest_gate(job.model)
        if newest is None or newest.gate is None:
            reason = "no run of the model asked for a gate, so interactive training moves head itself"
            await self._store.close_ungated(job.checkpoint_id, reason)
            return
        # Its trajectories are of no run that people could review.
        await self._queue(job, replace(newest.gate, require_review=0), newest.profile)

    async def _advance_reviewed(self, model_name: str) -> bool:
        """The newest candidate that passed and waits for people becomes head once they confirmed enough."""
        waiting = await self._store.jobs(model_name, JobPhase.REVIEW)
        for job in waiting[:-1]:
            reason = f"superseded by v{waiting[-1].version}, which passed as well and waits for review"
            await self._store.hold(job.checkpoint_id, reason, self._now())
        if not waiting or waiting[-1].gate is None:
            return False
        job, gate = waiting[-1], waiting[-1].gate
        candidate = await self._models.checkpoint(job.checkpoint_id)
        if candidate.state is CheckpointState.PROMOTED:
            await self._store.close_ungated(job.checkpoint_id, candidate.reason)
            return True
        if job.head_revision != (await self._models.model(model_name)).head_revision:
            command = f"upcycle models head {model_name} --set {job.checkpoint_id}"
            reason = f"held: head moved while it waited for review; {command} makes it head nevertheless"
            await self._store.hold(job.checkpoint_id, reason, self._now())
            return True
        try:
            missing = await self._unreviewed(job, gate)
        except Unavailable as error:  # asked again at the next look; other candidates go on
            missing = f"held: {_AWAITS_STORE}: {error}"
        if missing:
            if not candidate.reason.startswith(missing):
                await self._store.note_review(job.checkpoint_id, missing)
            return False
        head = await self._models.checkpoint(job.head_checkpoint_id)
        return await self._look(job, PairUnderTest(job, gate, candidate, head))

    async def _advance_running(self, job: GateJob) -> bool:
        if job.gate is None:
            raise ValueError(f"gate job of {job.checkpoint_id} runs without a gate")
        model = await self._models.model(job.model)
        candidate = await self._models.checkpoint(job.checkpoint_id)
        if candidate.state is CheckpointState.PROMOTED:
            await self._pairs.call_off(job, "the candidate was promoted")
            await self._store.close_ungated(job.checkpoint_id, candidate.reason)
            return True
        if job.level is None or job.head_revision != model.head_revision:
            return await self._begin(job, job.gate, model)
        head = await self._models.checkpoint(job.head_checkpoint_id)
        return await self._look(job, PairUnderTest(job, job.gate, candidate, head))

    async def _look(self, job: GateJob, pair: PairUnderTest) -> bool:
        """Conclude the job where its decision is final. False: something is played for it."""
        try:
            decided = await self._pairs.look(pair)
        except PairsGivenUp as error:
            await self._store.hold(job.checkpoint_id, str(error), self._now())
            return True
        return decided is not None and await self._conclude(job, pair.gate, decided)

    async def _begin(self, job: GateJob, gate: GateSpec, model: Model) -> bool:
        """The judgement of a candidate against head begins, at the level that the run has left for it. What
        was played against another head is no evidence about this one."""
        await self._pairs.call_off(job, "head moved")
        if job.version < model.head_version:
            reason = f"held: older than head v{model.head_version}"
            await self._store.hold(job.checkpoint_id, reason, self._now())
            return True
        if await self._is_barred(job):
            return True
        was_tested = job.level is not None and await self._pairs.was_looked_at(job)
        tests = [*await self._levels.tests(job.run_id), *([False] if was_tested else [])]
        promoted = tuple(at for at, is_promoted in enumerate(tests, start=1) if is_promoted)
        try:
            level = AlphaWealth(gate.rule().alpha, len(tests), promoted).next_level
        except BadGateRule as error:
            await self._store.hold(job.checkpoint_id, f"its gate cannot be kept: {error}", self._now())
            return True
        begun = replace(
            job, level=level, head_checkpoint_id=model.head_checkpoint_id, head_revision=model.head_revision
        )
        await self._levels.begin(job, begun, self._now(), was_tested=was_tested)
        return True

    async def _conclude(self, job: GateJob, gate: GateSpec, decided: Decided) -> bool:
        judgement = Judgement(
            candidate_checkpoint_id=job.checkpoint_id,
            head_checkpoint_id=job.head_checkpoint_id,
            head_revision=job.head_revision,
            gate=gate,
            taskset_digest=job.taskset_digest,
            run_ids=decided.run_ids,
            decision=decided.decision,
            reason=reason_of(decided.decision, gate.rule(), by_shadow=gate.by_shadow),
        )
        missing = ""
        if judgement.is_passed:
            checked = await self._checked(job, gate, judgement, decided.finished_at)
            if checked is None:
                return False
            judgement, missing = checked
        try:
            if missing:
                await self._store.await_review(_held(judgement, missing), self._now())
            elif judgement.is_passed:
                await self._store.promote(judgement, self._now())  # the one place where the gate moves head
            else:
                await self._store.hold_judged(judgement, self._now())
        except HeadMoved as error:
            log.info("judged_again", extra={"checkpoint_id": job.checkpoint_id, "why": str(error)})
        return True

    async def _checked(
        self, job: GateJob, gate: GateSpec, judgement: Judgement, finished_at: datetime
    ) -> tuple[Judgement, str] | None:
        """Of what passed: (the judgement as monitors leave it, why people have to look first). None: it waits
        for the monitors. Raises Unavailable while it waits for the store."""
        limit = finished_at + _MONITORS_WAIT
        try:
            found = await self._open_alarms((job.run_id, *judgement.run_ids), finished_at + _CLOCKS_DIFFER)
            missing = "" if found.alarms else await self._unreviewed(job, gate)
        except Unavailable as error:
            if await self._may_wait(job, f"{_AWAITS_STORE}: {error}", max(limit, self._began + _PEERS_START)):
                raise
            return _held(judgement, f"{_NOT_READ} trajectory_store does not answer: {error}"), ""
        if found.alarms:  # a reward that is hacked proves nothing
            reason = f"held: open alarm {found} (upcycle trajectories alarms {job.run_id})"
            return _held(judgement, reason), ""
        if missing or not found.unseen:
            return judgement, missing
        said = f"trajectory_store says that {found.unseen}"
        if await self._may_wait(job, f"{_AWAITS_MONITORS}: {said}", limit):
            return None
        return _held(judgement, f"{_NOT_SEEN} {said}"), ""

    async def _open_alarms(self, run_ids: Sequence[str], seen_until: datetime) -> OpenAlarms:
        if self._alarms is None:
            return OpenAlarms()
        return await self._alarms.open_alarms(run_ids, seen_until)

    async def _may_wait(self, job: GateJob, reason: str, limit: datetime) -> bool:
        """Whether a candidate that passed goes on waiting, and says so. One that people confirmed has no
        limit: they may have taken days, it is held as it is, and no other candidate waits for it."""
        is_reviewed = job.phase is JobPhase.REVIEW
        if self._now() >= limit and not is_reviewed:
            return False
        candidate = await self._models.checkpoint(job.checkpoint_id)
        if candidate.reason != reason:
            log.info("awaits_monitors", extra={"checkpoint_id": job.checkpoint_id, "why": reason})
            note = self._store.note_review if is_reviewed else self._levels.note
            await note(job.checkpoint_id, reason)
        return True

    async def _unreviewed(self, job: GateJob, gate: GateSpec) -> str:
        """Why people have to look first; "" where they looked, or need not."""
        if not gate.require_review:
            return ""
        asked = None if self._alarms is None else self._alarms.num_confirmed(job.run_id, gate.require_review)
        confirmed = 0 if asked is None else await asked
        if confirmed >= gate.require_review:
            return ""
        return (
            f"held: a person confirmed {confirmed} of the {gate.require_review} highest-rewarded "
            f"trajectories that {job.run_id} asks for (upcycle trajectories review {job.run_id})"
        )


def _held(judgement: Judgement, reason: str) -> Judgement:
    """The same evidence, without the promotion."""
    held = replace(judgement.decision, verdict=Verdict.HOLD)
    shown = judgement.reason.removeprefix("promoted: ")
    return replace(judgement, decision=held, reason=f"{reason}; without that it would be promoted: {shown}")
