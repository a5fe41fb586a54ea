"""Specifications of the processes and steps that a supervisor runs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from service_kit.component import ALARM
from service_kit.ports import LOOPBACK

Probe = Callable[[], Awaitable[str | None]]
"""None when ready, else the reason why not. Must be bounded in time."""

_PROBE_TIMEOUT_S: Final = 3.0
_MAX_ANSWER_BYTES: Final = 65_536


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
    ready: Probe = always_ready
    after: tuple[str, ...] = ()
    """Started when these are ready; stopped before them."""
    uses: tuple[str, ...] = ()
    """Stopped before these, but started without waiting for them."""
    url: str = ""
    """Where a person or client finds it."""
    http_port: int | None = None
    start_s: float = 60.0
    """Seconds from spawn to ready, at most."""
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


def http_probe(url: str) -> Probe:
    """Ready when a GET answers 200, or names nothing but alarms; the reasons come from the JSON body of our
    services' /readyz.
    """

    async def probe() -> str | None:
        try:
            status, reasons = await answer(url)
        except (OSError, TimeoutError, ValueError) as error:
            return f"{url} does not answer: {type(error).__name__}"
        if status == HTTPStatus.OK:
            return None
        if reasons and all(why.startswith(ALARM) for why in reasons.values()):
            return None
        return "; ".join(f"{name}: {why}" for name, why in reasons.items()) or f"{url} answers {status}"

    return probe


async def answer(url: str) -> tuple[int, Mapping[str, str]]:
    """Status of a GET, and the reasons in its body if it is that of /readyz. Raises OSError, TimeoutError,
    ValueError within three seconds."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    async with asyncio.timeout(_PROBE_TIMEOUT_S):
        status, body = await _get(parts.hostname or LOOPBACK, parts.port or 80, target)
    return status, _reasons(body)


async def _get(host: str, port: int, target: str) -> tuple[int, bytes]:
    """A GET over a plain socket: it runs many times a second while a stack starts, and an HTTP client costs
    processor time that is scarce then."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {target} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        head, _, body = (await reader.read(_MAX_ANSWER_BYTES)).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body + await reader.read(_MAX_ANSWER_BYTES)
    except IndexError as error:
        raise ValueError("not an HTTP answer") from error
    finally:
        writer.close()


def _reasons(body: bytes) -> Mapping[str, str]:
    try:
        state = json.loads(body)
    except ValueError:
        return {}
    reasons = state.get("reasons") if isinstance(state, dict) else None
    return {name: str(why) for name, why in reasons.items()} if isinstance(reasons, dict) else {}
