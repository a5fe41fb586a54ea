"""Claims: a task is claimed once, as training data, as held out or for audits, and the claim is never taken
back.

Claims are made in the transaction that registers a taskset, and before an interactive pass takes a gradient.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

from episodes import Split
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.tasksets import RegisteredTaskset, TaskClaim
from service_kit.errors import InvalidRequest
from upcycle.task_rows import MAX_CLAIMED, MAX_NAME_CHARS

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SIDES: Final = {Split.TRAIN: "training data", Split.HELD_OUT: "held out", Split.AUDIT: "for audits"}


class ClaimTasks:
    """Make tasks that are on no side training data, before a gradient is taken on them."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan

    async def __call__(
        self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
    ) -> int:
        """How many were unassigned until now; all are training data afterwards. claimed_by: who takes the
        gradient. source_run_ids: runs whose trajectories it is taken on, kept from retention for a day.
        Raises InvalidRequest, also for a released run, and Refused when a task is held out: then none is
        claimed."""
        if not claimed_by.strip() or len(claimed_by) > MAX_NAME_CHARS or not claimed_by.isprintable():
            raise InvalidRequest(
                f"claimed_by {claimed_by!r:.80} is not printable text of 1 to {MAX_NAME_CHARS} characters"
            )
        for what, given in (("task_digests", digests), ("source_run_ids", source_run_ids)):
            if len(given) > MAX_CLAIMED:
                raise InvalidRequest(
                    f"{what} has {len(given)} entries, limit {MAX_CLAIMED}; claim them in several calls"
                )
        wrong = [digest for digest in digests if not _DIGEST.fullmatch(digest)]
        if wrong:
            raise InvalidRequest(f"task_digests: {wrong[0]!r:.80} is not a sha256 in 64 hex digits")
        wanted, sources = set(digests), set(source_run_ids)
        return await self._plan.transact(
            lambda unit: _claim(unit, wanted, claimed_by, sources), turn="claims"
        )


def _claim(unit: PlanUnit, digests: set[str], claimed_by: str, source_run_ids: set[str]) -> int:
    if released := unit.source_groups.hold(source_run_ids, unit.now):
        raise InvalidRequest(
            f"source run {released[0]} was released to retention: its trajectories may be gone; "
            "take those of a newer evaluation"
        )
    before = unit.splits(digests)
    against = unit.claim(digests, Split.TRAIN, f"gradient of {claimed_by}")
    if against is not None:
        raise Refused(
            f"task {against.digest[:12]}… is {_SIDES[against.split]}: {against.claimed_by} claimed it, and "
            "it must never train; leave its trajectories out"
        )
    return sum(split is Split.UNASSIGNED for split in before.values())


def claim_generated(unit: PlanUnit, digests: Collection[str], run_id: str) -> TaskClaim | None:
    """Make a new task of a run training data, however it is written. Returns the claim of one that never
    trains, and claims nothing then. Raises Refused where another transaction puts it there meanwhile."""
    sides = unit.splits(digests)
    if all(not side.never_trains for side in sides.values()):
        against = unit.claim(digests, Split.TRAIN, f"new task of {run_id}")
        if against is None:
            return None
        raise Refused(f"task {against.digest[:12]}… was just claimed by {against.claimed_by}")
    return unit.claimed(min(digest for digest, side in sides.items() if side.never_trains))


def claim_for(unit: PlanUnit, taskset: RegisteredTaskset) -> None:
    """Put every task of a taskset on its side, however it is written; of an unassigned one none. Raises
    Refused, naming the task, when one is on the other side.
    """
    if taskset.split is Split.UNASSIGNED:
        return
    digests = {task.digest for task in taskset.tasks} | taskset.spellings.keys()
    against = unit.claim(digests, taskset.split, f"taskset {taskset.name}")
    if against is not None:
        raise Refused(_on_the_other_side(taskset, against))


def _on_the_other_side(taskset: RegisteredTaskset, against: TaskClaim) -> str:
    digest = taskset.spellings.get(against.digest, against.digest)
    slug = next(task.slug for task in taskset.tasks if task.digest == digest)
    otherwise = "" if digest == against.digest else ", its defaults written otherwise,"
    return (
        f"task {slug!r} of taskset {taskset.name!r} ({taskset.split.value}){otherwise} is "
        f"{_SIDES[against.split]} already: {against.claimed_by} claimed it, and a task is on one side only; "
        f"leave it out, change its arguments, or register the taskset with split {against.split.value}"
    )
