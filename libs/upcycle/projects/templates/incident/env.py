"""The environment: four tools over the database of one incident, and the scenario that grades a diagnosis."""

import os
from collections.abc import AsyncGenerator
from typing import Any, Final

from grading import WEIGHTS, Grade, grade
from names import Names, Split
from world import CAUSES, World, draw_incident

from upcycle import Environment, EvaluationResult, SubScore
from upcycle.scenario import Reference

env = Environment("incident")

TOOL_DELAY_MS: Final = "INCIDENT_TOOL_DELAY_MS"
"""Variable that makes every tool call take so many milliseconds, as tools over a network do; 0 when unset."""

# An episode is a process of its own, so its world is this module's state: set by the scenario, read by tools.
_worlds: list[World] = []


@env.tool()
def list_issues() -> str:
    """Open issues, with their errors."""
    return _world().list_issues()


@env.tool()
def get_stack_trace(issue_id: str) -> str:
    """Stack of an issue, innermost call last."""
    return _world().get_stack_trace(issue_id)


@env.tool()
def search_logs(service: str) -> str:
    """Recent log lines of a service."""
    return _world().search_logs(service)


@env.tool()
def recent_deploys(service: str) -> str:
    """Deployments of a service, newest first."""
    return _world().recent_deploys(service)


@env.scenario("investigate")
async def investigate(split: Split, seed: int, names: Names = "new") -> AsyncGenerator[Any, Any]:
    """Find the service at fault in the incident of a seed, and why it broke."""
    delay_s = float(os.environ.get(TOOL_DELAY_MS, "0")) / 1e3
    world = World(draw_incident(split, seed, names), tool_delay_s=delay_s)
    _worlds.append(world)
    try:
        answer = yield prompt(world.incident.alerting)
        yield evaluation(grade(world.incident, str(answer), world.num_calls))
    finally:
        _worlds.remove(world)
        world.close()


@investigate.gold
def diagnosed(split: Split, seed: int, names: Names = "new") -> Reference:
    """The right diagnosis, after as many calls as the evidence takes; for `upcycle check`."""
    incident = draw_incident(split, seed, names)
    looks = [("search_logs", {"service": incident.alerting}), ("search_logs", {"service": incident.faulty})]
    calls = (("list_issues", {}), *looks, ("recent_deploys", {"service": incident.faulty}))
    return Reference(f"service: {incident.faulty} cause: {incident.cause}", calls)


def prompt(alerting: str) -> str:
    """What the agent is asked."""
    return (
        f"Alert: {alerting} is failing. Find the service at fault and the cause. "
        "A deploy minutes ago is the cause, whatever the logs say. "
        f"Answer as\nservice: NAME cause: {'|'.join(CAUSES)}"
    )


def evaluation(result: Grade) -> EvaluationResult:
    """A grade as the platform's reward tree."""
    subscores = tuple(SubScore(name, value, WEIGHTS[name]) for name, value in result.subscores.items())
    return EvaluationResult(result.score, result.success, subscores, {"reason": result.reason})


def _world() -> World:
    if not _worlds:
        raise RuntimeError("no incident is open: start the scenario 'investigate' before calling tools")
    return _worlds[-1]
