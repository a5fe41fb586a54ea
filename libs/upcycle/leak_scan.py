"""What an agent reads of a task before its first turn, searched for what it has to find: at registration.

Each task that is looked at is a process of its own. The same rule as `upcycle check`, which looks longer.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcycle.images import text_of_prompt
from upcycle.leaks import leaked, secret_arguments
from upcycle.probes import idle_arguments
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.environment.channel import ControlChannel
    from upcycle.playing.forking import EpisodeHosts
    from upcycle.run_client import RegisteredTaskset
    from upcycle.tasks import Task, Taskset

MAX_LINES: Final = 5
"""Leaks that are named after a registration."""
log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """max_tasks: of more, so many are looked at, evenly apart. total_s: then the rest is left; call_s: of one
    prompt or one tool."""

    max_tasks: int = 20
    total_s: float = 10.0
    call_s: float = 5.0


@dataclass(frozen=True, slots=True)
class TaskLeak:
    """A task that gives away what the agent has to find, and where."""

    task: str
    where: str
    secret: str

    def __str__(self) -> str:
        return f"{self.task}: {self.where} holds {self.secret[:60]!r}, which the agent has to find"


async def leaks_of(taskset: "Taskset", limits: ScanLimits = ScanLimits()) -> tuple[TaskLeak, ...]:
    """Leaks of the tasks whose arguments name what is to be found. Empty where none do, and where the
    environment cannot be played here: a served one, or one that fails, of which others tell."""
    telling = [task for task in taskset.tasks if secret_arguments(task.args)]
    if not telling or taskset.environment.url or not _can_fork():
        return ()
    count = min(limits.max_tasks, len(telling))
    chosen = [telling[at * len(telling) // count] for at in range(count)]
    others = [secret for task in telling for secret in secret_arguments(task.args)]
    found: list[TaskLeak] = []
    try:
        await _scan(taskset, chosen, others, limits, found)
    except Exception as error:
        log.debug("taskset %s is not searched for leaks: %s", taskset.name, error)
    return tuple(dict.fromkeys(found))


def _can_fork() -> bool:
    from upcycle.environment.forking import can_fork  # its module needs the C library of a Unix

    return can_fork()


async def leak_lines(registered: "RegisteredTaskset", taskset: "Taskset") -> list[str]:
    """What to say of a taskset that was registered: nothing where the platform knew these tasks already."""
    leaks = await leaks_of(taskset) if registered.is_new else ()
    lines = [f"{registered.name}: {leak}" for leak in leaks[:MAX_LINES]]
    if more := leaks[MAX_LINES:]:
        lines.append(f"{registered.name}: {amount(len(more), 'more such place')}; `upcycle check` names all")
    return lines


async def _scan(
    taskset: "Taskset",
    chosen: Sequence["Task"],
    others: Sequence[str],
    limits: ScanLimits,
    found: list[TaskLeak],
) -> None:
    from upcycle.playing.forking import hosts_of

    hosts = await asyncio.to_thread(hosts_of, taskset.environment)
    try:
        async with asyncio.timeout(limits.total_s):
            for task in chosen:
                secrets = secret_arguments(task.args)
                for where, text in await _read(hosts, task, limits.call_s):
                    held = leaked(secrets, text, others)
                    found += [TaskLeak(task.slug, where, secret) for secret in held]
    finally:
        await asyncio.to_thread(hosts.close)


async def _read(hosts: "EpisodeHosts", task: "Task", call_s: float) -> list[tuple[str, str]]:
    """Its prompt, and what each tool says to arguments that mean nothing."""
    host = await hosts.new(task)
    try:
        async with host.channel() as channel:
            prompt = await channel.start(task.scenario, task.args, timeout_s=call_s)
            read = [("its prompt", text_of_prompt(prompt))]
            for tool in await channel.list_tools(timeout_s=call_s):
                arguments = idle_arguments(tool.parameters)
                said = await _say(channel, tool.name, arguments, call_s)
                read.append((f"what tool {tool.name} says to {arguments}", said))
            return read
    finally:
        await host.end()


async def _say(channel: "ControlChannel", name: str, arguments: Mapping[str, Any], call_s: float) -> str:
    """ "" for a tool that refuses or does not answer: it gives nothing away."""
    from upcycle.environment.channel import ChannelError
    from upcycle.environment.channel.client import ChannelTimeout

    try:
        called = channel.call_tool(name, arguments, timeout_s=call_s, max_bytes=256 * 1024)
        return (await called).text
    except (ChannelError, ChannelTimeout):
        return ""
