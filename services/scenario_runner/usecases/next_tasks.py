"""Which tasks a run plays: all of its taskset once, those of some families, draws with replacement, or what a
sampler draws by what its groups taught."""

from collections.abc import Iterable

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.runs import RunRecord
from scenario_runner.domain.task_sampler import LOOK_BACK_EPOCHS, TaskPast, draw_tasks
from scenario_runner.domain.tasksets import RegisteredTaskset
from service_kit.errors import InvalidRequest
from upcycle.run_config import RunSpec
from upcycle.run_config.names import UNIFORM

_SHOWN = 8


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


def next_tasks(unit: PlanUnit, run: RunRecord, count: int) -> Iterable[tuple[int, int]]:
    """(position of the group, position of its task in the taskset) of the next `count` groups.

    Guided groups have positions too, and take no turn in the order of the tasks."""
    seed, at = plan.run_seed(run), run.next_position
    if run.spec.training is not None and run.spec.training.task_sampler != UNIFORM:
        return _drawn(unit, run, run.spec.training.task_sampler, range(at, at + count))
    if not run.spec.families and run.spec.draws is None:
        turns = plan.tasks_from(seed, run.num_tasks, at - run.num_guided, count)
        return [(turn + run.num_guided, task) for turn, task in turns]
    chosen = unit.positions_of(run.taskset, run.spec.families)
    pick = plan.tasks_from if run.spec.draws is None else plan.draws_from
    return [(position, chosen[index]) for position, index in pick(seed, len(chosen), at, count)]


def _drawn(unit: PlanUnit, run: RunRecord, sampler: str, positions: range) -> Iterable[tuple[int, int]]:
    families = run.spec.families
    tasks = unit.positions_of(run.taskset, families) if families else list(range(run.num_tasks))
    known = unit.task_pasts.of(run, max(0, positions.start - LOOK_BACK_EPOCHS * run.num_tasks))
    pasts = [known.get(task, TaskPast()) for task in tasks]
    drawn = draw_tasks(sampler, plan.run_seed(run), pasts, positions)
    return [(position, tasks[index]) for position, index in drawn]
