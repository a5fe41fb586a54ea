"""Where new tasks of a scenario come from while a run goes on: a generator makes the arguments of one of
those of a task that the run has played; a proposal, of a policy that plays against itself, is read as one."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from upcycle.errors import ArgumentsInvalid, ScenarioError, TasksetInvalid
from upcycle.guidance import attempt_of
from upcycle.raised import RAISED, deed
from upcycle.task_rows import canonical_args, canonical_json, not_json
from upcycle.transcripts import Answer


@dataclass(frozen=True, slots=True)
class Parent:
    """The task that a new one is made of. solved: whether a whole group solved it, or none of a group did.
    proposal: what an episode of it answered, where that proposes the new task, or is what is left of it."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    solved: bool = False
    proposal: Answer | None = None


GeneratorFunction = Callable[[int, Parent], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
ProposalFunction = Callable[..., Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""Of an Answer and the arguments of its task: the arguments of the task that it proposes, or leaves."""


def parent_of(row: Mapping[str, Any]) -> Parent:
    """The parent in `{"args", "solved", "proposal"}`."""
    arguments, proposal = _object(row, "args"), None
    if row.get("proposal") is not None:
        proposal = attempt_of(_object(row, "proposal"))
    return Parent(arguments, row.get("solved") is True, proposal)


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    if not isinstance(value, Mapping):
        raise ArgumentsInvalid(f"parent.{name} is {type(value).__name__}, not an object")
    return dict(value)


async def made_arguments(
    make: Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]],
    named: str,
    scenario: str,
    check: Callable[[Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """The arguments of a new task of the scenario. named: what makes them, for people. check: raises
    ArgumentsInvalid for what the scenario does not take. Raises ScenarioError where `make` raises, or makes
    what is no task of the scenario."""
    try:
        made = make()
        arguments = await made if inspect.isawaitable(made) else made
    except RAISED as error:
        raise ScenarioError(f"{named} {deed(error)}") from error
    if not isinstance(arguments, Mapping):
        raise ScenarioError(
            f"{named} returned {arguments!r:.80}, not arguments", "return a dict of the scenario's arguments"
        )
    try:
        check(arguments)
        canonical_args(canonical_json(dict(arguments)), scenario)
    except (ArgumentsInvalid, TasksetInvalid) as error:
        where = not_json(arguments)
        why = f"argument {where!r}: {error.message}" if where else error.message
        raise ScenarioError(f"{named} made no task: {why}", error.hint) from error
    return dict(arguments)
