"""What is registered, for people; and tasksets deleted, where nothing refers to them.

The row of a deleted taskset stays, so that its revisions are not numbered again and old runs have a name to
point at. Claims stay too: a task that was held out stays held out.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from episodes import Split
from scenario_runner.adapters.sql_plan import PLANNING, PlanUnit, SqlPlan
from scenario_runner.domain.environments import EnvironmentBroken, EnvironmentSource, PythonEnvironment
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.taskset_checks import MAX_GIVEN_FINDINGS, TasksetCheck, given
from scenario_runner.domain.tasksets import RegisteredTaskset, TasksetFacts, TasksetUser
from scenario_runner.ports import Lineages
from scenario_runner.usecases.registering import no_such_taskset, with_tasks
from service_kit.errors import InvalidRequest
from sql_store import take_turn
from upcycle.environment.deployed import deployed_digest
from upcycle.environment.source_files import SourceFiles

log = logging.getLogger(__name__)

FilesNow = Callable[[EnvironmentSource], Awaitable[SourceFiles | None]]

_NAMED: Final = 5
"""Runs, and things of the registry, that a refusal names."""


class Tasksets:
    """Read what is registered, and delete it."""

    def __init__(self, plan: SqlPlan, files_now: FilesNow, lineages: Lineages) -> None:
        self._plan = plan
        self._files_now = files_now
        self._lineages = lineages

    async def get(self, name: str) -> RegisteredTaskset:
        """With its tasks: the newest revision of a name, or that of `name@n`. Raises NotFound."""
        return await self._plan.read(lambda unit: with_tasks(unit, name))

    async def all(self) -> list[RegisteredTaskset]:
        """The newest revisions, without their tasks."""
        return await self._plan.read(lambda unit: unit.tasksets())

    async def described(self) -> list[TasksetFacts]:
        """The newest revisions, by name."""
        return await self._with_sources(await self._plan.read(lambda unit: _summaries(unit)))

    async def describe(self, name: str) -> tuple[RegisteredTaskset, list[Split], list[TasksetFacts]]:
        """A taskset with its tasks, the side of each, and all revisions of its name. Raises NotFound."""

        def read(unit: PlanUnit) -> tuple[RegisteredTaskset, list[Split], list[TasksetFacts]]:
            taskset = with_tasks(unit, name)
            sides = unit.splits({task.digest for task in taskset.tasks})
            return taskset, [sides[task.digest] for task in taskset.tasks], _summaries(unit, taskset.name)

        taskset, sides, revisions = await self._plan.read(read)
        return taskset, sides, await self._with_sources(revisions)

    async def delete(self, name: str) -> list[TasksetFacts]:
        """Every revision of a taskset that nothing refers to: what was deleted. Raises NotFound,
        InvalidRequest for one revision, Refused with what refers to it, Unavailable while the registry cannot
        be asked."""
        users = await self._plan.read(lambda unit: _users_of(unit, name))
        _refuse_used(name, users, await self._lineages.of_taskset(name, {one.run_id for one in users}))
        # First the turn of its registration, which may take half a minute, then that of the planner.
        return await self._plan.transact(
            lambda unit: _delete(unit, name),
            turn=f"taskset {name}",
            check=lambda connection: take_turn(connection, PLANNING),
        )

    async def _with_sources(self, found: Sequence[TasksetFacts]) -> list[TasksetFacts]:
        digests = {one: await self._digest(one) for one in {facts.taskset.source for facts in found}}
        return [replace(facts, source_digest=digests[facts.taskset.source]) for facts in found]

    async def _digest(self, source: EnvironmentSource) -> str:
        try:
            if isinstance(source, PythonEnvironment) and (deployed := deployed_digest(source.path)):
                return deployed
            files = await self._files_now(source)
        except EnvironmentBroken:
            return ""
        return "" if files is None else files.digest


def _summaries(unit: PlanUnit, name: str = "") -> list[TasksetFacts]:
    found = unit.catalog.revisions(name) if name else unit.catalog.newest()
    keys = {one.taskset.key for one in found}
    sides, checks = unit.catalog.sides(keys), unit.checks.of(keys)
    given_checks = _given(checks, MAX_GIVEN_FINDINGS if name else 0)
    return [
        replace(
            one,
            sides=sides[one.taskset.key],
            checks=tuple(check for check in given_checks if check.taskset == one.taskset.key),
        )
        for one in found
    ]


def _given(checks: Sequence[TasksetCheck], room: int) -> list[TasksetCheck]:
    """So many findings of them, of the newest checks first."""
    done = []
    for check in checks:
        done.append(given(check, room))
        room -= len(done[-1].findings)
    return done


def _users_of(unit: PlanUnit, name: str) -> list[TasksetUser]:
    taskset = unit.taskset(name)
    if taskset is None:
        raise no_such_taskset(unit, name)
    if taskset.name != name:
        raise InvalidRequest(
            f"{name!r} is one revision of taskset {taskset.name!r}, which is deleted whole: leave the "
            "revision out"
        )
    keys = {one.taskset.key for one in unit.catalog.revisions(name)}
    return unit.catalog.runs_on(name, keys)


def _refuse_used(name: str, users: Sequence[TasksetUser], lineages: Sequence[str]) -> None:
    """lineages: what the registry has, in words."""
    there = [f"run {one.run_id}{' (its gate)' if one.is_gated else ''}" for one in users if not one.is_gone]
    if there or lineages:
        named = "; ".join(_some(names) for names in (there, lineages) if names)
        raise Refused(
            f"taskset {name!r} is referred to by {named}; it stays while anything does. "
            "`upcycle retention` removes old runs that nothing needs"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _delete(unit: PlanUnit, name: str) -> list[TasksetFacts]:
    _refuse_used(name, _users_of(unit, name), ())
    gone = _summaries(unit, name)
    keys = {one.taskset.key for one in gone}
    unit.catalog.delete(keys, unit.now)
    unit.checks.forget(keys)
    log.info("taskset_deleted", extra={"taskset": name, "revisions": len(gone)})
    return gone
