"""A gate's evaluation gives episodes the time that the run gave them which asks for the gate."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import RegistryHarness

from checkpoint_registry.wire import runs as wire
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2


@pytest.mark.parametrize("deadline_s", [4 * 3600, 0])
async def test_episodes_of_a_gate_have_the_time_of_their_run(
    harness: RegistryHarness, deadline_s: int
) -> None:
    runs = harness.planner.runs
    runs["run-train"] = replace(runs["run-train"], episode_deadline_s=deadline_s)
    await harness.save(1)
    await harness.drive()
    orders = list(harness.planner.orders.values())
    assert [order.episode_deadline_s for order in orders] == [deadline_s]
    asked = [wire.order_to_wire(order).spec for order in orders]
    assert [one.episode_deadline_s for one in asked] == [deadline_s]
    assert [one.HasField("episode_deadline_s") for one in asked] == [bool(deadline_s)]


def test_the_time_is_read_of_the_run() -> None:
    spec = taskset_pb2.RunSpec(episode_deadline_s=14_400)
    answer = service_pb2.GetRunResponse(run=taskset_pb2.Run(run_id="run-train", spec=spec))
    assert wire.run_from_wire(answer).episode_deadline_s == 14_400
