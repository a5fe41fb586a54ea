"""What the planner believes of a `step.completed`: who reads of a last step plans nothing more, and ends a
run, so a false one must not do it.
"""

import logging

from episodes import GroupOutcome
from identities.entities import is_recorded_episode
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import Advanced, GroupSettled, trained_by
from scenario_runner.domain.runs import FINAL_RUN_STATES, RunRecord
from scenario_runner.domain.tracked import TrackedRow, due_sets

log = logging.getLogger(__name__)


class FalseStep(Exception):
    """A `step.completed` that no trainer can have published about this run."""


def refuse_false_step(unit: PlanUnit, run: RunRecord, fact: Advanced) -> None:
    """Raises FalseStep for a step that the run does not take, or that does not name as many of its groups as
    a step trains. Nothing about what is known already, and about what the trainer said when it was asked."""
    if fact.episode_ids is None or fact.step <= run.step or run.state in FINAL_RUN_STATES:
        return
    name, training = f"step.completed {run.run_id} step {fact.step}", run.spec.training
    if training is None:
        raise FalseStep(f"{name}: the run does not train")
    if training.steps and fact.step > training.steps:
        raise FalseStep(f"{name}: the run ends with step {training.steps}")
    num_known = sum(
        unit.source_groups.one(run.run_id, settled.group_id) is not None
        if settled.source_run_id
        else _is_of(unit, run, settled.group_id)
        for settled in settled_by(unit, fact)
    )
    if num_known < training.prompts_per_step:
        raise FalseStep(
            f"{name}: it names {num_known} groups of the run, and a step trains {training.prompts_per_step}; "
            "if the planner's database was restored from a backup, replay this once it has the episodes"
        )


def settled_by(unit: PlanUnit, fact: Advanced) -> list[GroupSettled]:
    """The ends of all groups of a step."""
    found = list(trained_by(fact))
    groups: dict[str, list[str]] = {}
    sessions = [episode for episode in fact.episode_ids or () if is_recorded_episode(episode)]
    for episode, group in unit.sessions.groups_of(fact.run_id, sessions).items():
        groups.setdefault(group, []).append(episode)
    for group, episodes in groups.items():
        taken = unit.source_groups.one(fact.run_id, group)
        if taken is not None:
            outcome, source = GroupOutcome.TRAINED.value, taken.source_run_id
            found.append(GroupSettled(group, fact.run_id, outcome, "", fact.step, tuple(episodes), source))
    return found


def believed_step(unit: PlanUnit, run: RunRecord, fact: Advanced) -> int:
    """The newest step of the run after this fact, whose groups are settled already.

    Steps come one after the other. One that leaves out others counts once the groups of all of them are
    known; until then the trainer is asked, as about anything that the stream has lost.
    """
    training = run.spec.training
    if fact.step <= run.step or fact.episode_ids is None or training is None:
        return max(run.step, fact.step)
    if fact.step == run.step + 1:  # what was left out before it is known with it
        return fact.step + unit.num_in_step(run.run_id, fact.step) // training.prompts_per_step
    if unit.num_in_step(run.run_id, 0) >= fact.step * training.prompts_per_step:
        return fact.step
    log.warning("steps_not_read", extra={"run_id": run.run_id, "step": fact.step, "known": run.step})
    return run.step


def note_tracked(unit: PlanUnit, run: RunRecord, fact: Advanced) -> None:
    """A step is completed: its version is due on the sets whose turn it is."""
    if fact.episode_ids is None or not run.spec.track:
        return
    for taskset in due_sets(run.spec, fact.step):
        unit.tracked.add(
            TrackedRow(
                run.run_id,
                taskset,
                fact.step,
                fact.version,
                unit.now,
                reward=fact.reward,
                num_trained=len(fact.episode_ids),
                drift=fact.drift,
            )
        )


def _is_of(unit: PlanUnit, run: RunRecord, group_id: str) -> bool:
    group = unit.group(group_id)
    return group is not None and group.run_id == run.run_id
