"""Specifications of the processes and steps that a supervisor runs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

Probe = Callable[[], Awaitable[str | None]]
"""None when ready, else the reason why not. Must be bounded in time."""


async def always_ready() -> str | None:
    """For programs that have nothing to ask."""
    return None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A program that runs until it is stopped."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the supervisor."""
    is_foreign: bool = False
    """No program of ours: of the supervisor's environment it gets what any program needs, and no secret."""
    ready: Probe = always_ready
    after: tuple[str, ...] = ()
    """Started when these are ready; stopped before them."""
    uses: tuple[str, ...] = ()
    """Stopped before these, but started without waiting for them."""
    url: str = ""
    """Where a person or client finds it."""
    http_port: int | None = None
    start_s: float = 60.0
    """Seconds from spawn to ready, at most, without those in which it waited for a processor."""
    stop_s: float = 40.0
    """Seconds from SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """Something done once, in the supervisor's own process, between starting others. Must be idempotent."""

    name: str
    run: Callable[[], Awaitable[None]]
    after: tuple[str, ...] = ()
    limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and how fast, a process that ends by itself is started again."""

    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    max_failed_starts: int = 5
    """Give up after so many starts in a row that did not become ready."""
    hopeless: frozenset[int] = frozenset({2})
    """Exit statuses that another start cannot mend: 2 means wrong settings."""

    def delay_s(self, failed_starts: int) -> float:
        """Pause before the next start; doubles with each start that failed."""
        return float(min(self.first_delay_s * 2 ** max(failed_starts - 1, 0), self.max_delay_s))
