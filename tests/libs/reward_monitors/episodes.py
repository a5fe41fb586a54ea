"""Episodes as monitors see them."""

from dataclasses import replace
from typing import Any

from reward_monitors import Component, Declared, Observed, RunMonitors, Seen


def episode(number: int, **changes: Any) -> Observed:
    """A wrong answer of version `number // 16`, to a task of its own."""
    usual = Observed(
        f"t{number}", f"task-{number}", number // 16, answer=f"service: s{number} cause: c", tools=("look",)
    )
    return replace(usual, **changes)


def success(number: int, **changes: Any) -> Observed:
    """A right one."""
    return episode(number, **{"reward": 1.0, "success": True, **changes})


def watched(episodes: list[Observed]) -> tuple[RunMonitors, list[Seen]]:
    """Monitors that saw these, and what each showed."""
    monitors = RunMonitors()
    return monitors, [monitors.see(one) for one in episodes]


def kinds(monitors: RunMonitors) -> list[str]:
    """Of the alarms that are raised."""
    return [alarm.kind.value for alarm in monitors.alarms()]


def paid(**values: float) -> dict[str, Component]:
    """Components of equal weight."""
    return {name: Component(value / len(values), value) for name, value in values.items()}


SECRET = Declared(secrets=("root_cause=a/b",))
PROTECTED = Declared(protected="{}")
EVIDENCE = Declared(evidence=("trace",))
IMPOSSIBLE = Declared(impossible=True)
