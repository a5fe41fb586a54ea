"""Reconciles a training run with its trainer: what the trainer should have had by now, and does not have, is
published again from the planner's own rows, under the same ids.

The stream may have lost it: its storage was made anew, or its limits were reached while the trainer was away.
What the stream still holds changes nothing there, and what the trainer knows it ignores.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from episodes import Purpose
from identities import events as event_ids
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.explain import UNSETTLED_S
from scenario_runner.domain.facts import Advanced
from scenario_runner.domain.peer_facts import SessionFact
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeState, RunRecord
from scenario_runner.usecases.planning import apply_facts

log = logging.getLogger(__name__)

_GROUPS_AT_ONCE = 64
"""Bounds a transaction's length."""


class Trainer(Protocol):
    """What the trainer says about a run."""

    async def session(self, run_id: str) -> SessionFact | None:
        """None when it does not answer in time."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What waits for the trainer of a run for too long: complete groups, offers, the end of the run."""

    groups: Sequence[str] = ()
    offers: Sequence[str] = ()
    is_ending: bool = False
    num_held: int = 0
    """How many groups and offers the trainer should have, also those of a moment ago."""
    is_idle: bool = False
    """Nothing is in flight and nothing on offer: only the trainer's `step.completed` is awaited."""


class Reconcile:
    """Looks at a run at most once in `deadline_s`."""

    def __init__(self, plan: SqlPlan, trainer: Trainer, *, deadline_s: float = UNSETTLED_S) -> None:
        self._plan = plan
        self._trainer = trainer
        self._deadline = timedelta(seconds=deadline_s)
        self._looked_at: dict[str, datetime] = {}

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._looked_at.pop(run_id, None)

    async def __call__(self, run: RunRecord, now: datetime) -> int:
        """Returns how many groups and offers were announced again."""
        looked_at = self._looked_at.get(run.run_id)
        is_soon = looked_at is not None and now - looked_at < self._deadline
        if run.spec.purpose is not Purpose.TRAIN or is_soon:
            return 0
        self._looked_at[run.run_id] = now
        found = await self._plan.read(lambda unit: _unanswered(unit, run.run_id, now - self._deadline))
        if not (found.groups or found.offers or found.is_ending or found.is_idle):
            return 0
        session = await self._trainer.session(run.run_id)
        if found.is_idle:
            await self._catch_up(run, session)
        has_all = session is None or bool(session.failure) or session.groups_ready >= found.num_held
        if has_all and not found.is_ending:
            return 0
        return await self._announce(run.run_id, found)

    async def _announce(self, run_id: str, found: Unanswered) -> int:
        """All of them, a few per transaction: the trainer may lack the last ones only."""
        count = 0
        for start in range(0, max(len(found.groups), len(found.offers), 1), _GROUPS_AT_ONCE):
            some = slice(start, start + _GROUPS_AT_ONCE)
            part = replace(found, groups=found.groups[some], offers=found.offers[some])
            count += await self._plan.transact(partial(_announce_again, run_id=run_id, found=part))
        return count

    async def _catch_up(self, run: RunRecord, session: SessionFact | None) -> None:
        """The trainer says which step it reached, where its `step.completed` was lost."""
        if session is not None and session.step > run.step:
            log.warning("step_asked_for", extra={"run_id": run.run_id, "step": session.step})
            reached = Advanced(run.run_id, session.step, session.version)
            await self._plan.transact(lambda unit: apply_facts(unit, [reached]))


def _unanswered(unit: PlanUnit, run_id: str, before: datetime) -> Unanswered:
    run = unit.run(run_id)
    if run is None or run.state in FINAL_RUN_STATES:
        return Unanswered()
    complete = unit.complete_groups(run_id)
    groups = [group_id for group_id, since in complete.items() if since < before]
    offered = unit.source_groups.offered(run_id)
    offers = [one.group_id for one in offered if one.offered_at is not None and one.offered_at < before]
    is_ending = run.ending_since is not None and run.ending_since < before
    num_held = len(complete) + len(offered)
    is_idle = not (unit.counts(run_id).in_flight or offered) and unit.num_in_step(run_id, run.step) > 0
    return Unanswered(groups, offers, is_ending, num_held, is_idle)


def _announce_again(unit: PlanUnit, run_id: str, found: Unanswered) -> int:
    run = unit.run(run_id)
    if run is None or run.state in FINAL_RUN_STATES:
        return 0
    known = [event_ids.run_submitted(run_id)]
    unit.prefetch(found.groups)
    for group_id in found.groups:
        known += _group_again(unit, run, group_id)
    known += (event_ids.group_offered(run_id, group_id) for group_id in found.offers)
    if run.ending is not None:
        known += (event_ids.run_stopping(run_id, is_final=final) for final in (False, True))
        known += (event_ids.group_settled(group_id) for group_id in found.groups)
        known += (event_ids.group_settled(group_id, offered_to=run_id) for group_id in found.offers)
    unit.announce_again(known)
    extra = {"run_id": run_id, "groups": len(found.groups), "offers": len(found.offers)}
    log.warning("announced_again", extra=extra)
    return len(found.groups) + len(found.offers)


def _group_again(unit: PlanUnit, run: RunRecord, group_id: str) -> list[str]:
    """Announce its grades; returns the ids of what else the trainer must know of it."""
    group, members = unit.group(group_id), unit.members(group_id)
    if group is None or not group.is_open or any(row.state is EpisodeState.PLANNED for row in members):
        return []
    for row in members:
        if row.state is EpisodeState.GRADED and row.body_key:
            unit.announce_graded_again(run, row)
    is_short = group.expected_members < run.spec.group_size
    return [event_ids.group_shortened(group_id, group.expected_members)] if is_short else []
