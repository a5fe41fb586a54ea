"""What an attack on a taskset's graders found is kept with the revision that has the attacked tasks."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.runs import NotFound
from scenario_runner.domain.taskset_checks import (
    MAX_FINDING_CHARS,
    MAX_FINDINGS,
    MAX_MODEL_CHARS,
    CheckKind,
    TasksetCheck,
)
from scenario_runner.usecases.registering import no_such_taskset
from service_kit.errors import InvalidRequest
from upcycle.printable import is_one_line


class RecordAttack:
    """Keep the result of an attack that was run elsewhere."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan

    async def __call__(self, name: str, digest: str, check: TasksetCheck) -> tuple[int, TasksetCheck]:
        """(the revision that has these tasks, the check as it is kept). Raises InvalidRequest, NotFound."""
        _check_limits(check)
        turn = f"checks of {name}"
        return await self._plan.transact(lambda unit: _keep(unit, name, digest, check), turn=turn)


def _keep(unit: PlanUnit, name: str, digest: str, check: TasksetCheck) -> tuple[int, TasksetCheck]:
    revisions = [one.taskset for one in unit.catalog.revisions(name)]
    if not revisions:
        raise no_such_taskset(unit, name)
    attacked = next((one for one in reversed(revisions) if one.digest == digest), None)
    if attacked is None:
        raise NotFound(
            f"no revision of taskset {name!r} has the tasks that were attacked (digest {digest[:12]!r}); "
            "register them (upcycle sync tasks FILE), and attack again"
        )
    kept = replace(check, taskset=attacked.key, checked_at=unit.now)
    unit.checks.put(kept)
    return attacked.revision, kept


def _check_lines(texts: Mapping[str, Iterable[str]]) -> None:
    """What is shown to people must not look like lines of ours."""
    for name, given in texts.items():
        if bad := next((text for text in given if not is_one_line(text)), None):
            raise InvalidRequest(
                f"check.{name} has {bad!r:.80}; use one line without control characters, tabs and characters "
                "that turn the direction of writing"
            )


def _check_limits(check: TasksetCheck) -> None:
    if check.kind is not CheckKind.ATTACK:
        raise InvalidRequest(f"check.kind is {check.kind.value}: the planner makes its leak scans itself")
    if len(check.model) > MAX_MODEL_CHARS:
        raise InvalidRequest(
            f"check.model_family has {len(check.model)} characters; use at most {MAX_MODEL_CHARS}"
        )
    if check.source_digest and not re.fullmatch("[0-9a-f]{64}", check.source_digest):
        raise InvalidRequest(
            f"check.source_digest is {check.source_digest!r:.80}; give 64 hex digits, or leave it empty"
        )
    texts = (*check.findings, check.stopped)
    _check_lines({"model_family": [check.model], "findings": check.findings, "stopped": [check.stopped]})
    if len(check.findings) > MAX_FINDINGS or any(len(text) > MAX_FINDING_CHARS for text in texts):
        raise InvalidRequest(
            f"check.findings has {len(check.findings)} sentences, the longest text of the check "
            f"{max(map(len, texts))} characters; use at most {MAX_FINDINGS} of {MAX_FINDING_CHARS}, and "
            "count the others in num_findings"
        )
    counts = (check.num_tasks, check.num_looked, check.num_plays, check.num_findings)
    if min(counts) < 0 or check.num_looked > check.num_tasks or check.num_findings < len(check.findings):
        raise InvalidRequest(
            f"check looked at {check.num_looked} of {check.num_tasks} tasks in {check.num_plays} plays and "
            f"has {len(check.findings)} of {check.num_findings} findings; give counts that can be"
        )
