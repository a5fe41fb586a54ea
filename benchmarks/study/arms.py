"""What is compared: arms of a study over seeds, their curves and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.study.corridor import Group, Kinds, Table
from benchmarks.study.curriculum import Curriculum, turns_of
from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.trajectories import GradedTrajectory
from scenario_runner.domain.task_sampler import TaskPast, added, draw_tasks
from upcycle.run_config.names import ON_FAILURE, UNIFORM

RATE: Final = 0.05
HINT: Final = 3.0
"""What guidance adds to the logits of the right actions."""
_T95: Final = {2: 4.303, 4: 2.776}
"""Two-sided t at 95 %, by degrees of freedom: three seeds, five seeds."""
_MOST_DRAWN: Final = 4
"""Times the groups of a step: as many a step may draw before it goes with fewer."""

Measures = Mapping[str, float]
Play = Callable[[int], Measures]
"""One run of an arm under a seed."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison."""

    name: str
    play: Play


@dataclass(frozen=True, slots=True)
class Study:
    """A method of a paper as an option of a run. measure: what decides; better: 1 where more is; columns:
    what is printed."""

    option: str
    source: str
    measure: str
    better: int
    arms: Sequence[Arm]
    columns: Sequence[str] = ("success", "area", "to_80", "reward", "drawn")


def spec_of(**options: Any) -> TrainingSpec:
    """A run of the corridor."""
    given = {"steps": 60, "prompts_per_step": 8, "learning_rate": RATE, "lr_schedule": "constant", **options}
    return training_spec(run_id="run-study", model="corridor", group_size=8, **given)


def draw(table: Table, past: list[TaskPast], curriculum: Curriculum | None = None) -> list[Group]:
    """A batch of groups that have a signal, of tasks that the run's sampler draws, or new ones; shorter where
    none comes any more. past: of each kind, which grows."""
    found: list[Group] = []
    failed: list[int] = []
    for _ in range(_MOST_DRAWN * table.spec.prompts_per_step):
        at = table.drawn
        table.drawn += 1
        new = None if failed or curriculum is None else curriculum.drawn(at)
        if failed:
            group = _guided(table, failed.pop())
        elif new is not None:
            group = table.play(new.task_position, turns=turns_of(new))
        else:
            kind = _drawn_kind(table, past, at)
            group = table.play(kind)
        has_signal = why_no_signal(table.spec, members_of(group)) is None
        if curriculum is not None and not group.hint:
            curriculum.ended(group, new, at, has_signal=has_signal)
        if not group.hint and new is None:
            past[kind] = added(
                dict(enumerate(past)), kind, trained=int(has_signal), flat=int(not has_signal), newest=at
            )
            failed += [kind] if _is_to_be_guided(table, group) else []
        if has_signal:
            found.append(group)
        if len(found) == table.spec.prompts_per_step:
            break
    return found


def _is_to_be_guided(table: Table, group: Group) -> bool:
    """As the planner decides it of a group without a success, and so without spread."""
    spec = table.spec
    has_share = table.guided + 1 <= spec.guidance_max_share * (table.drawn + 1)
    return spec.guidance == ON_FAILURE and not any(group.successes) and has_share


def _guided(table: Table, kind: int) -> Group:
    table.guided += 1
    return table.play(kind, hint=HINT)


def _drawn_kind(table: Table, past: Sequence[TaskPast], at: int) -> int:
    if table.spec.task_sampler == UNIFORM:
        return int(table.random.integers(len(past)))
    (kind,) = draw_tasks(table.spec.task_sampler, table.seed, past, range(at, at + 1))
    return kind


def trained(
    kinds: Kinds,
    seed: int,
    *,
    before: Callable[[Table], None] = lambda table: None,
    transformer: bool = False,
    **options: Any,
) -> Measures:
    """A plain run. before: what comes ahead of it; transformer: the policy is one, not a table of logits."""
    return ran(Table(kinds, spec_of(**options), seed, transformer=transformer), before)


def ran(table: Table, before: Callable[[Table], None] = lambda table: None) -> Measures:
    """A run of this policy: success and reward at its end, mean success along it, and steps to 80 %."""
    curriculum = None if table.spec.new_tasks == "off" else Curriculum(table.kinds, table.spec, table.seed)
    before(table)
    curve = [table.success()]
    past = [TaskPast() for _ in table.kinds.turns]
    for _ in range(table.spec.steps):
        if groups := draw(table, past, curriculum):
            table.learn(groups)
        curve.append(table.success())
    return measures_of(curve, table)


def measures_of(curve: Sequence[float], table: Table) -> Measures:
    """success: at the end; area: mean over the run; to_80: steps until 80 %, the run's length where never;
    drawn: groups that a step played; drift: KL of the policy from the first one, nats a turn."""
    to_80 = next((step for step, success in enumerate(curve) if success >= 0.8), len(curve))
    return {
        "success": curve[-1],
        "area": statistics.fmean(curve),
        "to_80": float(to_80),
        "reward": table.reward(),
        "drawn": table.drawn / len(curve),
        "drift": table.drift(),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % t interval over seeds."""
    if len(values) < 2:
        return values[0], 0.0  # one run has no spread
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), _T95[len(values) - 1] * spread


def members_of(group: Group) -> list[GradedTrajectory]:
    """Of a group, as the trainer sees them."""
    return [
        GradedTrajectory(
            trajectory_id="t",
            episode_id="e",
            run_id="run-study",
            group_id="g",
            member=number,
            group_size=len(group.rewards),
            reward=reward,
            success=success,
            body=None,  # type: ignore[arg-type]  # nothing fetches it
            oldest_version=0,
            newest_version=0,
            task_digest="",
            may_train=True,
            sequence=0,
            trace_headers={},
            turn_rewards=turns,
            cut_off=bool(group.cut_off) and group.cut_off[number],
        )
        for number, (reward, success, turns) in enumerate(
            zip(group.rewards, group.successes, group.turn_rewards, strict=True)
        )
    ]
