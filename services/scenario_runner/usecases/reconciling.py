"""Reconciles a training run with its trainer: what the trainer should have had by now, and does not have, is
published again from the planner's own rows, under the same ids.

The stream may have lost it: its storage was made anew, or its limits were reached while the trainer was away.
What the stream still holds changes nothing there, and what the trainer knows it ignores.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from episodes import Purpose
from identities import events as event_ids
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.explain import UNSETTLED_S
from scenario_runner.domain.facts import Advanced, Fact, SessionFailed
from scenario_runner.domain.peer_facts import NOT_STARTED, SessionFact
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeState, RunRecord
from scenario_runner.usecases.ending import announce_ending_again
from scenario_runner.usecases.offering import offer_again
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
    step: int = 0
    settled_step: int = 0
    """Newest step of which all groups are settled. Beyond `step`, its `step.completed` is awaited."""
    has_last_step: bool = False
    """The last step is known, and the run has not ended with it: a group of a step was not read."""

    @property
    def is_nothing(self) -> bool:
        """The trainer need not be asked."""
        is_known = not (self.has_last_step or self.settled_step > self.step)
        return is_known and not (self.groups or self.offers or self.is_ending)

    def in_parts(self) -> Iterator["Unanswered"]:
        """Each small enough for one transaction."""
        for at in range(0, max(len(self.groups), len(self.offers), 1), _GROUPS_AT_ONCE):
            part = slice(at, at + _GROUPS_AT_ONCE)
            yield replace(self, groups=self.groups[part], offers=self.offers[part])


class Reconcile:
    """Looks at a run at most once in `deadline_s`."""

    def __init__(self, plan: SqlPlan, trainer: Trainer, *, deadline_s: float = UNSETTLED_S) -> None:
        self._plan = plan
        self._trainer = trainer
        self._deadline = timedelta(seconds=deadline_s)
        self._looked_at: dict[str, datetime] = {}
        self._last_steps: set[str] = set()
        """Runs whose last step was known, and not the end of the run, at the look before."""

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._looked_at.pop(run_id, None)
        self._last_steps.discard(run_id)

    async def __call__(self, run: RunRecord, now: datetime) -> int:
        """Returns how many groups and offers were announced again."""
        looked_at = self._looked_at.get(run.run_id)
        is_soon = looked_at is not None and now - looked_at < self._deadline
        if run.spec.purpose is not Purpose.TRAIN or is_soon:
            return 0
        self._looked_at[run.run_id] = now
        found = await self._plan.read(lambda unit: _unanswered(unit, run.run_id, now - self._deadline))
        if found.is_nothing:
            return 0
        session = await self._trainer.session(run.run_id)
        if session is not None:
            await self._catch_up(run.run_id, session, found)
        has_all = session is None or bool(session.failure) or session.num_held >= found.num_held
        if has_all and not found.is_ending:
            return 0
        if session == NOT_STARTED:
            # It reads a run from its run.submitted on: what came before that would be lost again.
            await self._plan.transact(lambda unit: _announce_submitted(unit, run.run_id))
            return 0
        num_again = 0
        for part in found.in_parts():
            num_again += await self._plan.transact(partial(_announce_again, run_id=run.run_id, found=part))
        # Last: a trainer that has read it takes no group anymore.
        await self._plan.transact(lambda unit: _announce_ending(unit, run.run_id))
        return num_again

    async def _catch_up(self, run_id: str, session: SessionFact, found: Unanswered) -> None:
        """Apply what the trainer says where its `step.completed` or `session.failed` was lost."""
        facts: list[Fact] = []
        # A step of which a group is unsettled may be void, or its policy on its way into the store.
        step = min(session.step, found.settled_step)
        was_asked = run_id in self._last_steps
        self._last_steps = self._last_steps - {run_id} | ({run_id} if found.has_last_step else set())
        if step > found.step or (found.has_last_step and was_asked and step == found.step):
            facts.append(Advanced(run_id, step, session.version - (session.step - step)))
        if session.failure:
            facts.append(SessionFailed(run_id, session.failure_kind, session.failure))
        if facts:
            log.warning("trainer_asked", extra={"run_id": run_id, "step": step, "failure": session.failure})
            await self._plan.transact(lambda unit: apply_facts(unit, facts))


def _unanswered(unit: PlanUnit, run_id: str, before: datetime) -> Unanswered:
    run = unit.run(run_id)
    if run is None or run.state in FINAL_RUN_STATES or run.spec.training is None:
        return Unanswered()
    complete = unit.complete_groups(run_id)
    offered = unit.source_groups.offered(run_id)
    num_steps = unit.num_in_step(run_id, run.step) // run.spec.training.prompts_per_step
    return Unanswered(
        groups=[group_id for group_id, since in complete.items() if since < before],
        offers=[one.group_id for one in offered if one.offered_at is not None and one.offered_at < before],
        is_ending=run.ending_since is not None and run.ending_since < before,
        num_held=len(complete) + len(offered),
        step=run.step,
        settled_step=run.step + num_steps,
        has_last_step=run.ending is None and run.spec.training.reached(run.step),
    )


def _announce_submitted(unit: PlanUnit, run_id: str) -> None:
    run = unit.run(run_id)
    if run is not None and run.state not in FINAL_RUN_STATES:
        unit.announce_submitted(run, again=True)
        log.warning("announced_again", extra={"run_id": run_id, "groups": 0, "offers": 0})


def _announce_again(unit: PlanUnit, *, run_id: str, found: Unanswered) -> int:
    run = unit.run(run_id)
    if run is None or run.state in FINAL_RUN_STATES:
        return 0
    unit.announce_submitted(run, again=True)
    unit.prefetch(found.groups)
    num_groups = sum(_group_again(unit, run, group_id) for group_id in found.groups)
    num_offers = offer_again(unit, run, set(found.offers))
    if run.ending is not None:
        settled = [event_ids.group_settled(group_id) for group_id in found.groups]
        settled += (event_ids.group_settled(group_id, offered_to=run_id) for group_id in found.offers)
        unit.announce_again(settled)
    extra = {"run_id": run_id, "groups": num_groups, "offers": num_offers}
    log.warning("announced_again", extra=extra)
    return num_groups + num_offers


def _announce_ending(unit: PlanUnit, run_id: str) -> None:
    run = unit.run(run_id)
    if run is not None:
        announce_ending_again(unit, run)


def _group_again(unit: PlanUnit, run: RunRecord, group_id: str) -> bool:
    """Announce all that the trainer must know of a group; returns whether it is complete still."""
    group, members = unit.group(group_id), unit.members(group_id)
    if group is None or not group.is_open or any(row.state is EpisodeState.PLANNED for row in members):
        return False
    if group.expected_members < run.spec.group_size:
        failed = [row.reason for row in members if row.state is EpisodeState.FAILED]
        unit.announce_shortened(run, group, failed[-1] if failed else "", again=True)
    for row in members:
        if row.state is EpisodeState.GRADED and row.body_key:
            unit.announce_graded_again(run, row)
    return True
