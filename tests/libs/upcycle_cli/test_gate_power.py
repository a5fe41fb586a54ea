"""What `upcycle train` says of a gate's held-out set before the run."""

from types import SimpleNamespace
from typing import Any

from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest, GetTasksetResponse
from upcycle.api.taskset.v1.taskset_pb2 import Task, Taskset
from upcycle.cli.gate_power import power_of
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import Gate


def platform_with(num_tasks: int, num_impossible: int = 0) -> Any:
    """A planner whose held-out set has so many tasks, in two families, and so many without a solution."""

    async def get(request: GetTasksetRequest, timeout: float) -> GetTasksetResponse:
        assert request.name == "held"
        tasks = [Task(slug=f"t{at}", family="a" if at % 2 else "") for at in range(num_tasks)]
        tasks += [Task(slug=f"x{at}", family=IMPOSSIBLE_FAMILY) for at in range(num_impossible)]
        return GetTasksetResponse(taskset=Taskset(name="held", tasks=tasks))

    return SimpleNamespace(tasksets=SimpleNamespace(GetTaskset=get))


async def test_a_set_of_ten_tasks_is_hopeless_and_a_large_one_is_not() -> None:
    few = await power_of(platform_with(10), Gate("held", attempts=4))
    assert (few.num_tasks, few.is_hopeless) == (10, True)
    assert few.warning().startswith("10 held-out tasks can hardly show a gain: a candidate 10 points better")
    many = await power_of(platform_with(400), Gate("held"))
    assert (many.is_hopeless, many.warning()) == (False, "")
    assert many.at[0.03] <= many.at[0.05] <= many.at[0.10]
    assert many.line().startswith("power on 400 held-out tasks (from success 50 %): +3 points ")


async def test_tasks_without_a_solution_show_no_gain() -> None:
    assert await power_of(platform_with(10, 400), Gate("held", attempts=4)) == await power_of(
        platform_with(10), Gate("held", attempts=4)
    )
