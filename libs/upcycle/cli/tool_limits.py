"""Tools that may take longer than the episodes of a run: named before the run is submitted."""

from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from upcycle.cli.tasksets import TasksetSource
    from upcycle.environment import Environment

_DECLARED: Final = b"timeout_s"


class ToolTooLong(UpcycleError, ValueError):
    """A tool may take longer than the whole episode in which it is called."""

    kind = "tool_too_long"


def refuse_long_tools(source: "TasksetSource", deadline_s: int) -> None:
    """Raises ToolTooLong. Only an environment whose source declares a limit is loaded for it; what cannot be
    loaded here is not known here."""
    from upcycle.environment import load_environment
    from upcycle.environment.source_files import read_source

    chosen = next((one for one in source.defined if one.name == source.name), None)
    if chosen is None or not chosen.environment.path:
        return
    where = chosen.environment
    try:
        if not any(_DECLARED in content for content in read_source(where.path).files.values()):
            return
        limits = limits_of(load_environment(where.path, where.name))
    except Exception:
        return
    for name, limit_s in limits.items():
        if limit_s > deadline_s:
            raise ToolTooLong(
                f"tool {name!r} of environment {where.name!r} may take {limit_s:g} s (its timeout_s), and an "
                f"episode of this run ends after {deadline_s} s",
                f"give --episode-deadline-s {int(limit_s) + 60} or so, or the tool a shorter timeout_s",
            )


def limits_of(environment: "Environment") -> dict[str, float]:
    """The tools that say how long a call may take; the longest first."""
    own = {name: tool.spec.timeout_s for name, tool in environment.tools.items()}
    known = [(name, limit_s) for name, limit_s in own.items() if limit_s is not None]
    return dict(sorted(known, key=lambda one: -one[1]))
