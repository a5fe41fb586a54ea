"""Asks a process of the stack over HTTP how it is."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from local_stack.spec import Probe
from service_kit.component import ALARM
from service_kit.ports import LOOPBACK

_PATHS: Final = {"nats": "/healthz?js-enabled-only=true", "s3": "/"}
"""Of processes that are no services of ours, which have /readyz."""
_PROBE_TIMEOUT_S: Final = 3.0
_MAX_ANSWER_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """What came back. why: empty for 200. is_alarm: the process works, and a person is asked for."""

    status: int
    why: str = ""
    is_alarm: bool = False


def health_url(name: str, http_port: int) -> str:
    """Where a process on this machine says how it is."""
    return f"http://{LOOPBACK}:{http_port}{_PATHS.get(name, '/readyz')}"


def http_probe(url: str) -> Probe:
    """Ready when a GET answers 200, or names nothing but alarms."""

    async def probe() -> str | None:
        try:
            answer = await ask_health(url)
        except (OSError, TimeoutError, ValueError) as error:
            return f"{url} does not answer: {type(error).__name__}"
        return None if answer.is_alarm else answer.why or None

    return probe


async def ask_health(url: str) -> HealthAnswer:
    """The answer to a GET; the reasons come from the JSON body of our services' /readyz. Raises OSError,
    TimeoutError, ValueError within three seconds."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    async with asyncio.timeout(_PROBE_TIMEOUT_S):
        status, body = await _get(parts.hostname or LOOPBACK, parts.port or 80, target)
    if status == HTTPStatus.OK:
        return HealthAnswer(status)
    reasons = _reasons(body)
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or f"{url} answers {status}"
    is_alarm = bool(reasons) and all(reason.startswith(ALARM) for reason in reasons.values())
    return HealthAnswer(status, why, is_alarm)


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
