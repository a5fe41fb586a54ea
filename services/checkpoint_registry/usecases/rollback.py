"""Moves head back when a later evaluation shows that the promoted version is worse than the one before."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.domain.errors import HeadMoved, UnknownModel
from checkpoint_registry.domain.evidence import Evidence, combine
from checkpoint_registry.domain.gate import is_significantly_worse
from checkpoint_registry.domain.jobs import GATE_ACTOR, GateJob
from checkpoint_registry.domain.models import Checkpoint, HeadMove, Model
from checkpoint_registry.domain.pairs import as_head
from checkpoint_registry.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """Whether head is rolled back, and the one-sided confidence that this needs."""

    enabled: bool = True
    confidence: float = 0.99


class WatchHead:
    """Compares the stored evaluations of head with those of the head before it, after each new one."""

    def __init__(
        self,
        store: SqlGateStore,
        pairs: SqlPairStore,
        models: SqlModelStore,
        policy: RollbackPolicy,
        *,
        now: Clock,
    ) -> None:
        self._store = store
        self._pairs = pairs
        self._models = models
        self._policy = policy
        self._now = now
        # Runs that were judged for a model already; forgetting them costs time, not correctness.
        self._judged: dict[str, tuple[str, ...]] = {}

    async def consider(self, model_name: str) -> HeadMove | None:
        """Moves head back to where it came from when evidence since its promotion shows that it is worse.

        Only what the gate promoted is taken back; a head that a person set stays where the person put it.
        """
        if not self._policy.enabled:
            return None
        try:
            model = await self._models.model(model_name)
        except UnknownModel:
            return None
        promotion = await self._models.last_head_move(model_name)
        job = await self._store.job(model.head_checkpoint_id)
        if job is None or promotion.actor != GATE_ACTOR or not promotion.is_forward:
            return None
        if job.gate is not None and job.gate.by_shadow:
            return None  # evaluations count what the reward's grader pays for, and this gate does not
        now, before = await self._both_sides(promotion, job)
        if not now.run_ids or self._judged.get(model_name) == now.run_ids:
            return None
        worse = await asyncio.to_thread(is_significantly_worse, now, before, self._policy.confidence)
        self._judged[model_name] = now.run_ids
        return await self._roll_back(model, promotion, now, before) if worse else None

    async def _both_sides(self, promotion: HeadMove, job: GateJob) -> tuple[Evidence, Evidence]:
        """Evidence of head from after its promotion only, because the run that promoted it was the best of
        many; and all evidence of the head before, also beside the candidate that replaced it, where it did
        rather badly. Both as the source judged them that judged head last.
        """
        digest, profile = job.taskset_digest, job.profile.key() if job.profile else ""
        runs = await self._store.evaluations(promotion.to_checkpoint_id, digest, profile)
        since = [run for run in runs if run.finished_at > promotion.moved_at]
        before = await self._store.evaluations(promotion.from_checkpoint_id, digest, profile)
        pairs = await self._pairs.of_heads(job.model, digest, profile)
        before += [as_head(pair) for pair in pairs if pair.head_checkpoint_id == promotion.from_checkpoint_id]
        newest = since[-1].source_digest if since else ""
        now = combine(promotion.to_checkpoint_id, since, newest)
        return now, combine(promotion.from_checkpoint_id, before, newest)

    async def _roll_back(
        self, model: Model, promotion: HeadMove, now: Evidence, before: Evidence
    ) -> HeadMove | None:
        target = await self._models.checkpoint(promotion.from_checkpoint_id)
        reason = (
            f"rolled back: v{model.head_version} now succeeds on {_rate(now):.1%}, "
            f"v{target.version} before it on {_rate(before):.1%}; runs {', '.join(now.run_ids)}"
        )
        return await roll_back(self._models, model, target, reason, at=self._now())


async def roll_back(
    models: SqlModelStore, model: Model, target: Checkpoint, reason: str, *, at: datetime
) -> HeadMove | None:
    """Move head back, by the platform's own decision; None: head moved meanwhile, and stays."""
    try:
        move = await models.move_head(
            target, expected_revision=model.head_revision, actor=GATE_ACTOR, reason=reason, at=at
        )
    except HeadMoved:
        log.info("rollback_dropped_head_moved", extra={"model": model.model})
        return None
    log.warning("head_rolled_back", extra={"model": model.model, "reason": reason})
    return move


def _rate(evidence: Evidence) -> float:
    successes = sum(tally.successes for tally in evidence.tallies.values())
    return successes / evidence.attempts
