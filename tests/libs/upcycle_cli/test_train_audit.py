"""`upcycle train --audit`: opened once, after the gate decided: base and head beside what selected head."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.libs.upcycle_cli.test_training_commands import RUN, Platform, run_message, serving, upcycle

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.registry.v1 import service_pb2 as registry_service
from upcycle.api.taskset.v1 import service_pb2 as taskset_service
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.audits import Audit, AuditedVersion
from upcycle.cli.train_audit import PlannedAudit, audit_lines, audit_record
from upcycle.statistics.intervals import TaskTotal

AUDIT_RUN, GATE_RUN = "run-00000000a0d1", "run-0000000009a7"
SOLVED = {AUDIT_RUN: (3, 6), GATE_RUN: (2, 8)}
"""Of ten tasks, once each: by the base and by head."""


class AuditPlatform(Platform):
    """The same platform with a taskset for audits. promotes: head moves to v3 when the gate decides."""

    split: Any = common.SPLIT_AUDIT
    environment: dict[str, str]
    promotes = True

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def GetTaskset(self, request: Any, context: Any) -> taskset_service.GetTasksetResponse:
        return taskset_service.GetTasksetResponse(
            taskset=taskset.Taskset(name=request.name, split=self.split)
        )

    async def GetModel(self, request: Any, context: Any) -> registry_service.GetModelResponse:
        head = 3 if self.promotes and self.looks > 1 else 1
        return registry_service.GetModelResponse(model=registry.Model(model="incident", head_version=head))

    async def ListCheckpoints(self, request: Any, context: Any) -> registry_service.ListCheckpointsResponse:
        self.looks += self.steps == 3
        is_judged = self.looks > 1
        state = registry.CHECKPOINT_STATE_PROMOTED if is_judged else registry.CHECKPOINT_STATE_EVALUATING
        if is_judged and not self.promotes:
            state = registry.CHECKPOINT_STATE_HELD
        report = registry.GateReport(passed=self.promotes, run_ids=[GATE_RUN])
        one = registry.Checkpoint(checkpoint_id="c3", run_id=RUN, version=3, state=state, gate=report)
        return registry_service.ListCheckpointsResponse(checkpoints=[one])

    async def SubmitRun(self, request: Any, context: Any) -> taskset_service.SubmitRunResponse:
        self.asked.append(request)
        if request.spec.purpose == common.PURPOSE_TRAIN:
            return taskset_service.SubmitRunResponse(run=run_message(taskset.RUN_STATE_RUNNING, 0))
        return taskset_service.SubmitRunResponse(run=taskset.Run(run_id=AUDIT_RUN, spec=request.spec))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[taskset_service.WatchRunResponse]:
        if request.run_id == AUDIT_RUN:
            done = taskset.Run(run_id=AUDIT_RUN, state=taskset.RUN_STATE_COMPLETED)
            yield taskset_service.WatchRunResponse(run=done)
            return
        async for one in super().WatchRun(request, context):
            yield one

    async def GetRun(self, request: Any, context: Any) -> taskset_service.GetRunResponse:
        if request.run_id not in SOLVED:
            return await super().GetRun(request, context)
        base, head = SOLVED[request.run_id]
        results = [
            taskset.EpisodeResult(task_slug=f"t{task}", member=member, success=task < (head, base)[member])
            for task in range(10)
            for member in (0, 1)
        ]
        return taskset_service.GetRunResponse(run=taskset.Run(run_id=request.run_id), results=results)


@pytest.fixture
async def services() -> AsyncIterator[AuditPlatform]:
    services = AuditPlatform()  # type: ignore[abstract]
    async with serving(services) as services.environment:
        yield services


async def test_base_and_head_are_audited_once_beside_what_selected_head(services: AuditPlatform) -> None:
    ask = ("train", "incident", "--taskset", "sums", "--gate", "held", "--audit", "final")
    status, out, err = await upcycle(services.environment, *ask)
    assert status == 0, err
    assert out.splitlines()[-2:] == [
        "gate (selecting)  v3: success 20.0% -> 80.0%, gain +60.0% [+23.1%, +96.9%] over 10 tasks",
        "audit             v3 against v1 on final: success 30.0% -> 60.0%, gain +30.0% [-4.6%, +64.6%] "
        "over 10 tasks",
    ]
    _, opened = [one.spec for one in services.asked]
    assert (opened.taskset, opened.group_size, opened.label) == ("final", 4, "audit")
    assert (opened.policy.pinned_version, opened.against_version) == (3, 1)


async def test_without_a_promotion_the_audit_stays_closed_and_another_split_is_refused(
    services: AuditPlatform,
) -> None:
    ask = ("train", "incident", "--taskset", "sums", "--gate", "held", "--audit", "final")
    services.promotes = False
    status, _, err = await upcycle(services.environment, *ask)
    assert status == 0
    assert "audit: nothing was promoted, so final stays closed" in err
    assert len(services.asked) == 1
    services.split = common.SPLIT_HELD_OUT
    status, _, err = await upcycle(services.environment, *ask)
    assert status == 2
    assert "--audit final: its tasks are not of split audit" in err
    assert len(services.asked) == 1  # nothing was submitted


def test_the_record_of_an_audit_has_both_numbers_and_says_where_a_person_set_head() -> None:
    version = AuditedVersion((TaskTotal(1, 2), TaskTotal(2, 2)))
    record = audit_record(PlannedAudit("final", 1), 3, None, Audit(version, version))
    assert (record["gate_selecting"], record["audit"]["gain"]["difference"]) == (None, 0.0)
    assert audit_lines(PlannedAudit("final", 1), 3, None, Audit(version, version))[0] == (
        "gate (selecting)  v3: by a person, without a gate"
    )
