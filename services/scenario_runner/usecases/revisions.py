"""Revisions of a taskset: other tasks under the same name. A run plays the revision that it was submitted
with; a training run without a step limit takes the newest."""

import logging
from dataclasses import replace

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.runs import AlreadyTaken, RunRecord
from scenario_runner.domain.tasksets import RegisteredTaskset
from scenario_runner.usecases.mixing import take_revisions
from scenario_runner.usecases.task_claims import claim_for
from service_kit.errors import InvalidRequest
from upcycle.task_rows import MAX_NAME_CHARS

log = logging.getLogger(__name__)


def store(unit: PlanUnit, taskset: RegisteredTaskset) -> tuple[RegisteredTaskset, bool]:
    """(the taskset with its revision, whether that is new). The content of the newest revision again is none.
    Registrations of one name take turns.

    Raises AlreadyTaken for a name of another split or environment, Refused for tasks on the other side,
    InvalidRequest.
    """
    newest = unit.taskset(taskset.name)
    if newest is not None:
        _refuse_another_kind(newest, taskset)
    claim_for(unit, taskset)
    if newest is None:  # a name whose taskset was deleted goes on counting
        added = _next_revision(unit, taskset) if unit.catalog.numbered(taskset.name) else taskset
        unit.add_taskset(added)
        return added, True
    if newest.digest == taskset.digest:
        if newest.source != taskset.source:
            unit.move_taskset(newest.key, taskset.source)
        return replace(taskset, revision=newest.revision), False
    revised = _next_revision(unit, taskset)
    unit.add_taskset(revised)
    log.info("taskset_revised", extra={"taskset": revised.name, "revision": revised.revision})
    return revised, True


def take_revision(unit: PlanUnit, run: RunRecord) -> RunRecord:
    """A training run without a step limit as it plans from now on: from the newest revision of its taskset,
    unless it asked for `name@n`. Any other run as it is."""
    training = run.spec.training
    if training is None or not training.is_standing:
        return run
    if run.spec.mix:
        take_revisions(unit, run)
    newest = unit.taskset(run.spec.taskset)
    if newest is None or newest.key == run.taskset:
        return run
    taken = replace(
        run,
        taskset=newest.key,
        taskset_revision=newest.revision,
        taskset_digest=newest.digest,
        num_tasks=newest.num_tasks,
    )
    unit.update_run(taken)
    was = {"revision": newest.revision, "was": run.taskset_revision, "num_tasks": newest.num_tasks}
    log.info("revision_taken", extra={"run_id": run.run_id, "taskset": newest.name, **was})
    return taken


def _refuse_another_kind(newest: RegisteredTaskset, taskset: RegisteredTaskset) -> None:
    was = (newest.split.value, newest.source.name)
    asked = (taskset.split.value, taskset.source.name)
    if was != asked:
        raise AlreadyTaken(
            f"taskset {taskset.name!r} is registered with split {was[0]} and environment {was[1]!r}, this "
            f"one has split {asked[0]} and environment {asked[1]!r}; a new revision keeps both: choose "
            "another name"
        )


def _next_revision(unit: PlanUnit, taskset: RegisteredTaskset) -> RegisteredTaskset:
    revised = replace(taskset, revision=unit.catalog.numbered(taskset.name) + 1)
    # A taskset that is called `name@2` may be left from before there were revisions.
    while unit.catalog.is_taken(revised.key):
        revised = replace(revised, revision=revised.revision + 1)
    if len(revised.key) > MAX_NAME_CHARS:
        raise InvalidRequest(
            f"taskset.name {taskset.name!r:.80} leaves no room for a revision number within {MAX_NAME_CHARS} "
            "characters; choose a shorter name"
        )
    return revised
