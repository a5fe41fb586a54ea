"""Tasks for audits: they neither train nor gate, and a few runs may look at them."""

import grpc
import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import PlannerHarness
from tests.services.scenario_runner.support import arith, refusal, register, run_spec, submit
from tests.services.scenario_runner.test_splits import add, claim, splits

from episodes import Split
from scenario_runner.domain.runs import Refused
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2

SIDES = [Split.TRAIN, Split.HELD_OUT]


@pytest.mark.parametrize("other", SIDES)
async def test_an_audit_task_neither_trains_nor_gates_under_another_name(
    planner: PlannerHarness, other: Split
) -> None:
    await add(planner, "audits", Split.AUDIT, 1, 2)
    with pytest.raises(Refused, match=r"is for audits already: taskset audits claimed it"):
        await add(planner, "two", other, 3, 2)
    with pytest.raises(Refused, match=r"is for audits: taskset audits claimed it, and it must never train"):
        await claim(planner, 1, 4)
    assert await splits(planner, 1, 2, 3, 4) == [Split.AUDIT, Split.AUDIT, Split.UNASSIGNED, Split.UNASSIGNED]


@pytest.mark.parametrize("other", SIDES)
async def test_a_task_of_another_side_is_no_audit_task(planner: PlannerHarness, other: Split) -> None:
    await add(planner, "one", other, 1)
    with pytest.raises(Refused, match=r"taskset one claimed it.*register the taskset with split"):
        await add(planner, "audits", Split.AUDIT, 1)


async def test_audit_tasks_neither_train_nor_gate(runner: Runner) -> None:
    await register(runner, arith(2, "sums", common_pb2.SPLIT_TRAIN))
    await register(runner, arith(2, "audits", common_pb2.SPLIT_AUDIT, first=100))
    train, gate = common_pb2.PURPOSE_TRAIN, taskset_pb2.GateConfig(taskset="audits")
    for spec, says in (
        (run_spec(taskset="audits", purpose=train), "is for audits: it neither trains nor gates"),
        (run_spec(taskset="audits", trainable=True), "is for audits: its episodes never train"),
        (run_spec(taskset="sums", purpose=train, gate=gate), "is of split audit; a gate judges on held-out"),
    ):
        error = await refusal(submit(runner, spec))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert says in (error.details() or "")


async def test_a_taskset_for_audits_is_opened_so_often_and_no_more(runner: Runner) -> None:
    await register(runner, arith(2, "audits", common_pb2.SPLIT_AUDIT, first=100))
    await register(runner, arith(2, "others", common_pb2.SPLIT_AUDIT, first=200))
    spec = run_spec(taskset="audits", group_size=1)
    for opening in range(20):
        await submit(runner, spec, f"audit-{opening}")
    await submit(runner, spec, "audit-7")  # the same run again is no opening
    error = await refusal(submit(runner, spec, "audit-20"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "was opened 20 times, limit 20" in (error.details() or "")
    await submit(runner, run_spec(taskset="others", group_size=1), "audit-21")
