"""Tasksets: everything about one is checked before anything is stored."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from episodes import Split
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentDescription,
    PythonEnvironment,
    TcpEnvironment,
)
from scenario_runner.domain.runs import ForOperatorsOnly, NotFound
from scenario_runner.domain.spellings import other_spellings
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.ports import EnvironmentHost
from scenario_runner.usecases.revisions import store
from service_kit.errors import InvalidRequest
from upcycle.environment.deployed import deployed_digest
from upcycle.errors import SourceRefused, TasksetInvalid
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.revision_names import REVISION_SUFFIX, plain_name
from upcycle.shipped import only_measures
from upcycle.task_rows import canonical_args, check_name, task_digest
from upcycle.tasks import MAX_TASKS, taskset_digest

_SHOWN: Final = 20
"""Names in an error message."""


@dataclass(frozen=True, slots=True)
class SourceRules:
    """environment_roots: folders under which environment files must lie. allow_tcp: whether environments
    served elsewhere are accepted."""

    environment_roots: tuple[Path, ...]
    allow_tcp: bool = True


class RegisterTaskset:
    """Validate a taskset, load its environment once, store it."""

    def __init__(self, plan: SqlPlan, host: EnvironmentHost, rules: SourceRules) -> None:
        self._plan = plan
        self._host = host
        self._rules = rules

    async def __call__(
        self, taskset: RegisteredTaskset, *, by_operator: bool = True
    ) -> tuple[RegisteredTaskset, bool]:
        """(the taskset as stored, whether it is new). The same content again is not an error, other tasks
        under the same name are a new revision. by_operator: others may name deployed environments only.

        Raises InvalidRequest naming the task and the limit, ForOperatorsOnly, EnvironmentBroken,
        AlreadyTaken, Refused.
        """
        if not by_operator:
            _check_is_deployed(taskset.source)
        # In a thread: 100,000 tasks take seconds, and environments are being driven meanwhile.
        try:
            checked = await asyncio.to_thread(self._checked, taskset)
            description = await self._host.describe(checked.source)
        except TasksetInvalid as error:
            raise InvalidRequest(str(error)) from error
        except EnvironmentBroken as error:
            raise InvalidRequest(f"environment cannot be loaded: {error}") from error
        await asyncio.to_thread(check_fits, checked.tasks, description)
        spellings = await asyncio.to_thread(spellings_of, checked, description)
        checked = replace(checked, spellings=spellings)
        turn = f"taskset {checked.name}"  # not the planner's: 100,000 tasks take half a minute
        digest = description.source_digest
        return await self._plan.transact(lambda unit: _stored(unit, checked, digest), turn=turn)

    def _checked(self, taskset: RegisteredTaskset) -> RegisteredTaskset:
        check_name("taskset.name", taskset.name)
        if REVISION_SUFFIX.search(taskset.name):
            raise InvalidRequest(
                f"taskset.name {taskset.name!r:.80} ends like a revision; revisions are numbered here: leave "
                "the suffix out"
            )
        check_name("environment.name", taskset.source.name)
        source = self._checked_source(taskset.source)
        if not 0 < len(taskset.tasks) <= MAX_TASKS:
            raise InvalidRequest(
                f"taskset {taskset.name!r} has {len(taskset.tasks)} tasks; use 1 to {MAX_TASKS}"
            )
        tasks = tuple(_checked_task(task, source.name) for task in taskset.tasks)
        if taskset.split is Split.TRAIN:
            check_none_only_measures(source.name, tasks)
            _check_none_impossible(tasks)
        seen: set[str] = set()
        for task in tasks:
            if task.slug in seen:
                raise InvalidRequest(f"slug {task.slug!r} occurs twice; slugs are unique within a taskset")
            seen.add(task.slug)
        digest = taskset_digest(taskset.split.value, (task.digest for task in tasks))
        if taskset.digest and taskset.digest != digest:
            raise InvalidRequest(
                f"taskset.digest is {taskset.digest}, its content has {digest}; leave it empty"
            )
        return replace(taskset, source=source, digest=digest, tasks=tasks)

    def _checked_source(
        self, source: PythonEnvironment | TcpEnvironment
    ) -> PythonEnvironment | TcpEnvironment:
        if isinstance(source, TcpEnvironment):
            where = urlsplit(source.url)
            if not self._rules.allow_tcp:
                raise InvalidRequest(
                    "environments over tcp are switched off; set SCENARIO_RUNNER_ALLOW_TCP=true"
                )
            if where.scheme != "tcp" or not where.hostname or not where.port:
                raise InvalidRequest(f"environment.tcp.url is {source.url!r}; use tcp://host:port")
            return source
        if _is_deployed(source.path):
            return source
        path = Path(source.path).resolve()
        roots = [root.resolve() for root in self._rules.environment_roots]
        if not any(path.is_relative_to(root) for root in roots):
            allowed = ", ".join(map(str, roots)) or "none"
            raise InvalidRequest(
                f"environment.python.path {source.path!r} is outside the allowed roots ({allowed}); add "
                "its folder: `upcycle up --environments FOLDER`, SCENARIO_RUNNER_ENVIRONMENT_ROOTS"
            )
        if path.suffix != ".py" or not path.is_file():
            raise InvalidRequest(f"environment.python.path {source.path!r} is not a Python file")
        return replace(source, path=str(path))


def _stored(unit: PlanUnit, taskset: RegisteredTaskset, source_digest: str) -> tuple[RegisteredTaskset, bool]:
    """In one transaction with the order to search it for leaks, so that none is forgotten."""
    registered, is_new = store(unit, taskset)
    unit.checks.want_scan(registered.key, source_digest)
    return registered, is_new


def _check_is_deployed(source: PythonEnvironment | TcpEnvironment) -> None:
    if isinstance(source, TcpEnvironment) or not _is_deployed(source.path):
        where = source.url if isinstance(source, TcpEnvironment) else source.path
        raise ForOperatorsOnly(
            f"environment {source.name!r} is at {where!r}: only the operator's key may name a file or an "
            "address there; have it deployed (`upcycle deploy`), and register the taskset with what that "
            "printed"
        )


def _is_deployed(path: str) -> bool:
    try:
        return bool(deployed_digest(path))
    except SourceRefused as error:
        raise InvalidRequest(f"environment.python.path: {error}") from error


def with_tasks(unit: PlanUnit, name: str) -> RegisteredTaskset:
    """Raises NotFound."""
    taskset = unit.taskset(name)
    if taskset is None:
        raise no_such_taskset(unit, name)
    tasks = unit.tasks(taskset.key)
    return replace(taskset, tasks=tuple(tasks[position] for position in sorted(tasks)))


def no_such_taskset(unit: PlanUnit, name: str) -> NotFound:
    """The refusal of a name, with the nearest one."""
    known = [taskset.name for taskset in unit.tasksets()]
    near = get_close_matches(plain_name(name), known, n=1)
    hint = f"did you mean {near[0]!r}? There are" if near and near[0] != name else "there are"
    if not known:
        return NotFound(
            f"no taskset {name!r} is registered, and no other; register one: upcycle sync tasks FILE"
        )
    there = f"{', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"
    return NotFound(f"no taskset {name!r} is registered; {hint}: {there}")


def check_none_only_measures(environment: str, tasks: Sequence[RunnableTask]) -> None:
    """Raises InvalidRequest for a task of a benchmark that ships with the SDK."""
    for task in tasks:
        if only_measures(environment, task.scenario):
            raise InvalidRequest(
                f"task {task.slug!r} is of benchmark {environment}, whose tasks only measure; make the split "
                "held_out"
            )


def _check_none_impossible(tasks: Sequence[RunnableTask]) -> None:
    for task in tasks:
        if task.family == IMPOSSIBLE_FAMILY:
            raise InvalidRequest(
                f"task {task.slug!r} is of family {IMPOSSIBLE_FAMILY!r}: it has no solution, so training "
                "would pay for hacks alone; make the split held_out"
            )


def check_fits(tasks: Sequence[RunnableTask], environment: EnvironmentDescription) -> None:
    """Every scenario exists and its arguments fit its signature. Raises InvalidRequest naming the task."""
    for task in tasks:
        schema = environment.scenarios.get(task.scenario)
        if schema is None:
            known = ", ".join(sorted(environment.scenarios)) or "none"
            raise InvalidRequest(
                f"task {task.slug!r}: environment {environment.name!r} has no scenario {task.scenario!r}; "
                f"it has {known}"
            )
        try:
            problem = misfit(json.loads(task.args_json), schema)
        except (AttributeError, TypeError, RecursionError) as error:  # as a served environment wrote it
            problem = f"has arguments whose schema is no JSON schema: {error!r:.200}"
        if problem:
            raise InvalidRequest(f"task {task.slug!r}: scenario {task.scenario!r} {problem}")


def spellings_of(taskset: RegisteredTaskset, environment: EnvironmentDescription) -> dict[str, str]:
    """From each digest that a task has when it is written otherwise to the task's own."""
    return {
        other: task.digest
        for task in taskset.tasks
        for other in other_spellings(
            taskset.source.name, task.scenario, task.args_json, environment.scenarios[task.scenario]
        )
    }


def misfit(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Why arguments do not fit an object schema; "" when they do. Names and plain types are compared."""
    properties = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or () if name not in arguments]
    if missing:
        return f"needs argument {missing[0]!r}"
    unknown = [name for name in arguments if name not in properties]
    if unknown and schema.get("additionalProperties") is False:
        return f"has no argument {unknown[0]!r}; it takes {', '.join(properties) or 'none'}"
    for name, value in arguments.items():
        if not _is_kind(value, properties.get(name, {})):
            return f"argument {name!r} is {value!r:.60}, expected {json.dumps(properties[name])[:120]}"
    return ""


def _is_kind(value: Any, schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return schema is not False  # JSON schema knows true and false as schemas too
    if "anyOf" in schema:
        return any(_is_kind(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    kind = schema.get("type")
    if isinstance(kind, list):
        return any(_is_kind(value, {"type": one}) for one in kind)
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (
            isinstance(value, float) and (kind == "number" or value.is_integer())
        )
        return whole and not isinstance(value, bool)
    return kind not in kinds or isinstance(value, kinds[kind])


def _checked_task(task: RunnableTask, environment: str) -> RunnableTask:
    check_name("task.slug", task.slug)
    check_name(f"task {task.slug!r}: scenario", task.scenario)
    check_name(f"task {task.slug!r}: family", task.family)
    canonical = canonical_args(task.args_json, task.slug)
    digest = task_digest(environment, task.scenario, canonical)
    if task.digest and task.digest != digest:
        raise InvalidRequest(f"task {task.slug!r}: digest is {task.digest}, its content has {digest}")
    return replace(task, args_json=canonical, digest=digest)
