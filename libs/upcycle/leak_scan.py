"""What an agent reads of a task before its first turn, searched for what it has to find: at registration.

Each task that is looked at is a process of its own. The same rule as `upcycle check`, which looks longer.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from upcycle.evenly import evenly
from upcycle.images import text_of_prompt
from upcycle.leaks import leaked, secret_arguments
from upcycle.probes import idle_arguments
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.environment.channel import ControlChannel
    from upcycle.playing.forking import EpisodeHosts
    from upcycle.run_client import RegisteredTaskset
    from upcycle.tasks import Task, Taskset

IN_PROMPT: Final = "its prompt"
MAX_LINES: Final = 5
"""Leaks that are named after a registration."""
MAX_WHY_CHARS: Final = 200
"""Of why tasks were not searched."""


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


@dataclass(frozen=True, slots=True)
class LeakScan:
    """What was found, in num_looked of num_chosen tasks. why: the others were not; "" where none
    are left."""

    leaks: tuple[TaskLeak, ...] = ()
    num_looked: int = 0
    num_chosen: int = 0
    why: str = ""


async def scan_of(taskset: "Taskset", limits: ScanLimits = ScanLimits()) -> LeakScan:
    """Leaks of the tasks whose arguments name what is to be found; of nothing where none do. An environment
    that is served elsewhere is not played."""
    telling = [task for task in taskset.tasks if secret_arguments(task.args)]
    count = min(limits.max_tasks, len(telling))
    if not telling:
        return LeakScan()
    if taskset.environment.url:
        return LeakScan(num_chosen=count, why=f"its environment is served at {taskset.environment.url}")
    if not _can_fork():
        return LeakScan(num_chosen=count, why="environments are played in processes of their own on Unix")
    scan = _Scan(
        evenly(telling, count), [secret for task in telling for secret in secret_arguments(task.args)], limits
    )
    try:
        await scan.run(taskset)
    except TimeoutError:
        scan.why = f"{limits.total_s:g} s were over"
    except Exception as error:
        scan.why = f"it cannot be played here: {error}"
    return LeakScan(tuple(dict.fromkeys(scan.found)), scan.num_looked, count, scan.why)


def _can_fork() -> bool:
    from upcycle.environment.forking import can_fork  # its module needs the C library of a Unix

    return can_fork()


async def leak_lines(registered: "RegisteredTaskset", taskset: "Taskset") -> list[str]:
    """What to say of a taskset that was registered: nothing where the platform knew these tasks already."""
    scan = await scan_of(taskset) if registered.is_new else LeakScan()
    lines = [f"{registered.name}: {leak}" for leak in scan.leaks[:MAX_LINES]]
    if more := scan.leaks[MAX_LINES:]:
        lines.append(f"{registered.name}: {amount(len(more), 'more such place')}; `upcycle check` names all")
    if scan.why:
        tasks = f"{scan.num_looked} of {amount(scan.num_chosen, 'task')}"
        searched = f"{registered.name}: {tasks} searched for what the agent has to find"
        lines.append(f"{searched}: {scan.why[:MAX_WHY_CHARS]}; `upcycle check` looks longer")
    return lines


def said_by_tool(name: str, arguments: Mapping[str, Any]) -> str:
    """Where a leak is that a tool gives away when it is called for nothing."""
    return f"what tool {name} says to {arguments}"


@dataclass(slots=True)
class _Scan:
    chosen: Sequence["Task"]
    others: Sequence[str]
    limits: ScanLimits
    found: list[TaskLeak] = field(default_factory=list)
    num_looked: int = 0
    why: str = ""

    async def run(self, taskset: "Taskset") -> None:
        from upcycle.playing.forking import hosts_of

        hosts = await asyncio.to_thread(hosts_of, taskset.environment)
        try:
            async with asyncio.timeout(self.limits.total_s):
                for task in self.chosen:
                    await self._look(hosts, task)
        finally:
            await asyncio.to_thread(hosts.close)

    async def _look(self, hosts: "EpisodeHosts", task: "Task") -> None:
        try:
            read = await _read(hosts, task, self.limits.call_s)
        except Exception as error:  # this task alone
            self.why = self.why or f"task {task.slug}: {str(error) or type(error).__name__}"
            return
        self.num_looked += 1
        secrets = secret_arguments(task.args)
        for where, text in read:
            self.found += [TaskLeak(task.slug, where, one) for one in leaked(secrets, text, self.others)]


async def _read(hosts: "EpisodeHosts", task: "Task", call_s: float) -> list[tuple[str, str]]:
    """Its prompt, and what each tool says to arguments that mean nothing."""
    host = await hosts.new(task)
    try:
        async with host.channel() as channel:
            prompt = await channel.start(task.scenario, task.args, timeout_s=call_s)
            read = [(IN_PROMPT, text_of_prompt(prompt))]
            for tool in await channel.list_tools(timeout_s=call_s):
                arguments = idle_arguments(tool.parameters)
                said = await _say(channel, tool.name, arguments, call_s)
                read.append((said_by_tool(tool.name, arguments), said))
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
