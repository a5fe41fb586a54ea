"""Which tasks a run plays: all of its taskset once, those of some families, draws with replacement, or what a
sampler draws by what its groups taught. A run with a mix does so with each of its tasksets, by their shares.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.mixes import shares_of, turns
from scenario_runner.domain.runs import RunRecord
from scenario_runner.domain.task_sampler import LOOK_BACK_EPOCHS, TaskPast, draw_tasks
from scenario_runner.domain.tasksets import RegisteredTaskset
from scenario_runner.usecases import new_tasks, self_play
from service_kit.errors import InvalidRequest
from upcycle.run_config import RunSpec
from upcycle.run_config.names import UNIFORM

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class NextTask:
    """What the group at a position of a run plays: a task by its position in a revision of a taskset."""

    position: int
    taskset: str
    task_position: int
    new_task: int | None = None
    """The run's new task that it plays in place of that, which it descends from."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A taskset that gives groups at these positions. num_before: groups that took a turn in the order of its
    tasks. share: of the groups of the run."""

    taskset: str
    num_tasks: int
    num_before: int
    positions: Sequence[int]
    share: Fraction = Fraction(1)


def num_groups(unit: PlanUnit, spec: RunSpec, taskset: RegisteredTaskset) -> int:
    """Groups of an evaluation; of a training run the tasks that an epoch has. Raises InvalidRequest for a
    family that the taskset does not have."""
    if not spec.families:
        return spec.draws or taskset.num_tasks
    known = unit.families(taskset.key)
    for family in spec.families:
        if family not in known:
            there = f"{', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"
            raise InvalidRequest(
                f"spec.families: taskset {taskset.name!r} has no family {family!r}; it has {there}"
            )
    return spec.draws or len(unit.positions_of(taskset.key, spec.families))


def next_tasks(unit: PlanUnit, run: RunRecord, count: int) -> list[NextTask]:
    """Of the next `count` groups, in order.

    Guided groups and those on new tasks have positions too, and take no turn in the order of the tasks."""
    positions = range(run.next_position, run.next_position + count)
    new = self_play.drawn(unit, run, positions) or new_tasks.drawn(unit, run, positions)
    found = [NextTask(at, row.taskset, row.task_position, row.number) for at, row in new.items()]
    found += _of_tasksets(unit, run, [at for at in positions if at not in new])
    return sorted(found, key=lambda one: one.position)


def _of_tasksets(unit: PlanUnit, run: RunRecord, positions: Sequence[int]) -> list[NextTask]:
    if not positions:
        return []
    if not run.spec.mix:
        num_before = run.next_position - run.num_guided - run.num_new
        return _next(unit, run, _Turn(run.taskset, run.num_tasks, num_before, positions))
    rows, shares = unit.mixes.of(run.run_id), shares_of(run.spec)
    found: list[NextTask] = []
    for place, taken in turns(shares, rows, positions).items():
        row = rows[place]
        turn = _Turn(row.taskset, row.num_tasks, row.num_own_groups, taken, shares[place])
        found += _next(unit, run, turn)
    return found


def _next(unit: PlanUnit, run: RunRecord, turn: _Turn) -> list[NextTask]:
    tasks = _tasks(unit, run, turn)
    return [
        NextTask(position, turn.taskset, task) for position, task in zip(turn.positions, tasks, strict=True)
    ]


def _tasks(unit: PlanUnit, run: RunRecord, turn: _Turn) -> Iterable[int]:
    seed, count = plan.run_seed(run), len(turn.positions)
    if run.spec.training is not None and run.spec.training.task_sampler != UNIFORM:
        return _drawn(unit, run, run.spec.training.task_sampler, turn)
    if not run.spec.families and run.spec.draws is None:
        return [task for _, task in plan.tasks_from(seed, turn.num_tasks, turn.num_before, count)]
    chosen = unit.positions_of(turn.taskset, run.spec.families)
    pick = plan.tasks_from if run.spec.draws is None else plan.draws_from
    return [chosen[index] for _, index in pick(seed, len(chosen), turn.positions[0], count)]


def _drawn(unit: PlanUnit, run: RunRecord, sampler: str, turn: _Turn) -> Iterable[int]:
    families = run.spec.families
    tasks = unit.positions_of(turn.taskset, families) if families else list(range(turn.num_tasks))
    look_back = math.ceil(LOOK_BACK_EPOCHS * turn.num_tasks / turn.share)
    known = unit.task_pasts.of(run.run_id, turn.taskset, max(0, turn.positions[0] - look_back))
    pasts = [known.get(task, TaskPast()) for task in tasks]
    return [tasks[index] for index in draw_tasks(sampler, plan.run_seed(run), pasts, turn.positions)]
