"""Which tasks a run plays: all of its taskset once, those of some families, or draws with replacement."""

from collections.abc import Iterable

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.runs import RunRecord
from scenario_runner.domain.tasksets import RegisteredTaskset
from service_kit.errors import InvalidRequest
from upcycle.run_config import RunSpec

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
    """(position of the group, position of its task in the taskset) of the next `count` groups."""
    seed, at = plan.run_seed(run), run.next_position
    if not run.spec.families and run.spec.draws is None:
        return plan.tasks_from(seed, run.num_tasks, at, count)
    chosen = unit.positions_of(run.taskset, run.spec.families)
    pick = plan.tasks_from if run.spec.draws is None else plan.draws_from
    return [(position, chosen[index]) for position, index in pick(seed, len(chosen), at, count)]
