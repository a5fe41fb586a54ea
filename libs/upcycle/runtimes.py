"""Where the environments of an evaluation run that is played in the caller's process: what `runtime=` takes
beside a platform."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from upcycle.playing.errors import PlayRefused

if TYPE_CHECKING:
    from upcycle.task_rows import Task

ADDRESS_FORM: Final = "tcp://host:port or unix:///path"


class RuntimeRefused(PlayRefused):
    """The runtime is none, or none for this agent or these tasks."""

    kind = "runtime_refused"


class LocalRuntime(StrEnum):
    """On this machine. FORKED: each episode in a process of its own, as on the platform. IN_PROCESS: in the
    caller's process, which a debugger reaches; one episode after the other, because they share its modules,
    and with this process's variables, keys among them."""

    FORKED = "forked"
    IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True)
class Runtime:
    """An environment that another program serves on the control channel: `upcycle dev`,
    `python -m upcycle.environment.serve env.py`, an environment of HUD. url: tcp://host:port or unix:///path.
    Raises RuntimeRefused."""

    url: str

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise RuntimeRefused(
                f"{self.url!r:.200} is no address of a served environment", f"write {ADDRESS_FORM}"
            )


RuntimeContext = AbstractAsyncContextManager[Any]
"""Gives the address of a channel: a text, a Runtime, or anything with it as `url` or `address`."""
ChosenRuntime = Runtime | LocalRuntime | RuntimeContext | Callable[["Task"], RuntimeContext]
PlayRuntime = ChosenRuntime | str
"""A context is entered once, for all episodes. A function of the task is called for each episode, and what it
returns is entered for this one alone, so that each can have a machine of its own."""


def is_local(runtime: PlayRuntime | None) -> bool:
    """The environment is loaded from its file on this machine."""
    return runtime is None or (isinstance(runtime, str) and runtime in set(LocalRuntime))


def where_of(runtime: PlayRuntime | None) -> str:
    """For people: where the episodes' environments run."""
    if isinstance(runtime, Runtime):
        return f"its environments at {runtime.url}"
    if runtime == LocalRuntime.IN_PROCESS:
        return "each episode there too, one after the other"
    return "each episode in a process of its own" if is_local(runtime) else "its environments elsewhere"


def address_in(given: Any, whose: str) -> str:
    """The address in what a context gave. Raises RuntimeRefused. whose: of the context, in words."""
    for found in (given, getattr(given, "url", None), getattr(given, "address", None)):
        if isinstance(found, str) and _is_address(found):
            return found
    raise RuntimeRefused(
        f"{whose} gave {given!r:.200}, which names no served environment",
        f"let it yield {ADDRESS_FORM}, or something with that as `url` or `address`",
    )


def no_platform(given: Any) -> RuntimeRefused:
    """Of a runtime where a platform is to be named."""
    return RuntimeRefused(
        f"runtime is {given!r:.200}, and a model of the platform plays on the platform's own fleet",
        "leave runtime out, or give a Platform or its Addresses; an environment that is served elsewhere is "
        "named by its tasks: EnvironmentRef(name, url='tcp://host:port')",
    )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_tcp = parts.scheme == "tcp" and bool(parts.hostname and parts.port)
    except ValueError:
        return False
    return is_tcp or (parts.scheme == "unix" and bool(parts.path))
