"""`--track`: benchmarks that ship with the package are registered before the run, other names stay."""

from types import SimpleNamespace
from typing import Any

from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.cli.tracked_sets import with_benchmarks


class Tasksets:
    """A planner that has every taskset in its second revision."""

    def __init__(self) -> None:
        self.registered: list[pb.RegisterTasksetRequest] = []

    async def RegisterTaskset(self, request: Any, timeout: float = 0) -> pb.RegisterTasksetResponse:
        self.registered.append(request)
        return pb.RegisterTasksetResponse(name=request.taskset.name, revision=2)


async def test_a_benchmark_is_registered_under_its_own_name_and_every_set_says_its_steps() -> None:
    planner = Tasksets()
    platform: Any = SimpleNamespace(tasksets=planner)
    named = await with_benchmarks(platform, ("held", "repair-30:every=20"))
    assert named == ("held:every=10", "repair-30@2:every=20")
    (asked,) = planner.registered
    assert (asked.taskset.name, len(asked.taskset.tasks)) == ("repair-30", 30)
