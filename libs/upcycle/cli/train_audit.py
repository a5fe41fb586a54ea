"""`upcycle train --audit TASKSET`: opens a taskset of split audit once, when the run is over and judged."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from upcycle.audits import Audit, audit_spec, head_of, read_audit, wait_for_verdicts
from upcycle.cli.output import human, print_json
from upcycle.errors import UpcycleError
from upcycle.run_client import completed, follow_run, state_word, submit_run
from upcycle.run_config.wire import sampling_from_wire, spec_to_wire

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import GateReport
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.platform import Platform

_ASK_S = 10.0


class UnclearAudit(UpcycleError, ValueError):
    """A run cannot be audited so."""

    kind = "unclear_audit"


@dataclass(frozen=True, slots=True)
class PlannedAudit:
    """base: the version that was head when the run began."""

    taskset: str
    base: int


async def planned_audit(platform: "Platform", model: str, taskset: str) -> PlannedAudit:
    """Asked before the run is submitted: what cannot be audited later is refused. Raises UnclearAudit,
    RemoteNotFound."""
    from upcycle.api.common.v1.common_pb2 import SPLIT_AUDIT
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
    from upcycle.rpc import remote_errors

    with remote_errors(f"read taskset {taskset!r}"):
        found = (await platform.tasksets.GetTaskset(GetTasksetRequest(name=taskset), timeout=60)).taskset
    if found.split != SPLIT_AUDIT:
        raise UnclearAudit(
            f"--audit {taskset}: its tasks are not of split audit, so runs may have been chosen by them",
            "register tasks that neither train nor gate, in a Taskset of split 'audit'",
        )
    return PlannedAudit(taskset, await head_of(platform, model))


async def audited(
    platform: "Platform", run_id: str, plan: PlannedAudit, *, timeout_s: float, as_json: bool
) -> None:
    """Wait for the gate, play base and head side by side, and print what selected head beside what the audit
    found. Where nothing was promoted the tasks stay unseen. Raises UnclearAudit where it takes too long."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest

    run = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=_ASK_S)).run
    model = run.spec.policy.model
    try:
        async with asyncio.timeout(timeout_s):
            if run.spec.HasField("gate"):
                await wait_for_verdicts(platform, model, run_id)
            head = await head_of(platform, model)
            if head == plan.base:
                human().print(f"audit: nothing was promoted, so {plan.taskset} stays closed", markup=False)
                return
            found = await _played(platform, run, plan, head, timeout_s)
            selected = await _selected(platform, model, head)
    except TimeoutError:
        why = f"the audit of {run_id} took longer than {timeout_s:g} s"
        raise UnclearAudit(why, "give --timeout-s more") from None
    if as_json:
        print_json("audit", audit_record(plan, head, selected, found))
        return
    for line in audit_lines(plan, head, selected, found):
        print(line)


def audit_record(plan: PlannedAudit, head: int, selected: Audit | None, found: Audit) -> dict[str, Any]:
    """Fields of the JSON line `audit`."""
    return {
        "taskset": plan.taskset,
        "base_version": plan.base,
        "head_version": head,
        "gate_selecting": None if selected is None else selected.to_json(),
        "audit": found.to_json(),
    }


def audit_lines(plan: PlannedAudit, head: int, selected: Audit | None, found: Audit) -> list[str]:
    """Two numbers of the same kind: paired, clustered by task."""
    gate = "by a person, without a gate" if selected is None else _text(selected)
    return [
        f"gate (selecting)  v{head}: {gate}",
        f"audit             v{head} against v{plan.base} on {plan.taskset}: {_text(found)}",
    ]


def _text(audit: Audit) -> str:
    low, high = audit.gain_ci95
    return (
        f"success {audit.before.rate:.1%} -> {audit.after.rate:.1%}, gain {audit.gain:+.1%} "
        f"[{low:+.1%}, {high:+.1%}] over {len(audit.after.tasks)} tasks"
    )


async def _played(platform: "Platform", run: "Run", plan: PlannedAudit, head: int, timeout_s: float) -> Audit:
    sampling = sampling_from_wire(run.spec.sampling)
    spec = audit_spec(run.spec.policy.model, plan.taskset, head=head, base=plan.base, sampling=sampling)
    begun = await submit_run(platform, spec_to_wire(spec))
    human().print(f"audit: run {begun.run_id} plays v{head} and v{plan.base} on {plan.taskset}", markup=False)
    done = await follow_run(platform, begun.run_id, timeout_s=timeout_s)
    if not completed(done):
        raise UnclearAudit(
            f"the audit {begun.run_id} is {state_word(done)}: {done.failure}",
            f"ask upcycle why {begun.run_id}",
        )
    return await read_audit(platform, [begun.run_id])


async def _selected(platform: "Platform", model: str, head: int) -> Audit | None:
    """What candidate and head did side by side when head was promoted; None where no gate promoted it."""
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

    listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=model), timeout=_ASK_S)
    reports: list[GateReport] = [
        one.gate for one in listed.checkpoints if one.version == head and one.gate.passed and one.gate.run_ids
    ]
    return await read_audit(platform, reports[-1].run_ids) if reports else None
