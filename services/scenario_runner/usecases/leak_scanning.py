"""Prompts and idle tool calls of registered tasksets, searched for what the agent has to find.

A registration orders the scan and does not wait for it: the scan plays the environment in an episode's
process and may take a minute. It does not know answers that no argument names, such as those that
`@scenario.gold` makes: `upcycle check` looks for them where the environment's file is.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import (
    EnvironmentSource,
    EpisodeError,
    EpisodeToPlay,
    SecretsWithheld,
)
from scenario_runner.domain.taskset_checks import MAX_FINDING_CHARS, MAX_FINDINGS, TasksetCheck
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.ports import EnvironmentHost, LiveEnvironment
from service_kit.loops import ended, one_piece
from upcycle.evenly import evenly
from upcycle.images import text_of_prompt
from upcycle.leak_scan import IN_PROMPT, ScanLimits, TaskLeak, said_by_tool
from upcycle.leaks import leaked, secret_arguments
from upcycle.printable import one_line
from upcycle.probes import idle_arguments

log = logging.getLogger(__name__)

CHECKED_BY: Final = "scenario_runner"
LIMITS: Final = ScanLimits(max_tasks=20, total_s=60.0, call_s=10.0)
SCANS_AT_ONCE: Final = 4
"""So that one taskset that hangs holds up no other."""
MAX_TEXT_CHARS: Final = 64 * 1024
"""Of a prompt, or of what a tool says, that are searched."""
MAX_OTHERS: Final = 5_000
"""Secrets of all tasks, evenly apart, by which a list of candidates is known."""
_LOOK_S: Final = 1.0
_NO_SECRETS: Final = (
    "no argument of its tasks is named as one that holds the answer (expected, answer, gold, solution, "
    "target, secret), so nothing was searched; `upcycle check` looks for gold answers too"
)


class ScanForLeaks:
    """One look at the scans that are due."""

    def __init__(
        self,
        plan: SqlPlan,
        host: EnvironmentHost,
        *,
        now: Callable[[], datetime],
        limits: ScanLimits = LIMITS,
    ) -> None:
        self._plan = plan
        self._host = host
        self._now = now
        self._limits = limits

    async def __call__(self) -> None:
        """Raises Unavailable, for what is to be tried again."""
        running: dict[TasksetCheck, asyncio.Task[None]] = {}
        failed: dict[TasksetCheck, BaseException] = {}
        try:
            while await self._start(running, failed):
                done, _ = await asyncio.wait(
                    running.values(), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for due in [due for due, task in running.items() if task in done]:
                    if error := running.pop(due).exception():
                        failed[due] = error
        finally:
            await ended(running.values())
        for error in failed.values():
            raise error

    async def _start(
        self, running: dict[TasksetCheck, asyncio.Task[None]], failed: Collection[TasksetCheck]
    ) -> bool:
        """As many of those that are due as there is room for; those that failed wait for the next look.
        Whether any runs."""
        due = await self._plan.read(lambda unit: unit.checks.due())
        waiting = [one for one in due if one not in running and one not in failed]
        for one in waiting[: SCANS_AT_ONCE - len(running)]:
            running[one] = asyncio.create_task(self._scan(one))
        return bool(running)

    async def _scan(self, due: TasksetCheck) -> None:
        with one_piece(f"leak scan of taskset {due.taskset}"):
            scan = await self._plan.read(lambda unit: self._scan_of(unit, due))
            await scan.run()
            done = replace(scan.done(due), checked_by=CHECKED_BY, checked_at=self._now())
            turn = f"checks of {due.taskset}"
            if await self._plan.transact(lambda unit: unit.checks.finish(done), turn=turn):
                _log(done)

    def _scan_of(self, unit: PlanUnit, due: TasksetCheck) -> "_Scan":
        secrets = {task: _secrets(task) for task in unit.tasks(due.taskset).values()}
        telling = [task for task, of_task in secrets.items() if of_task]
        chosen = {task: secrets[task] for task in evenly(telling, self._limits.max_tasks)}
        everything = dict.fromkeys(secret for of_task in secrets.values() for secret in of_task)
        short = [secret for secret in everything if len(secret) <= MAX_TEXT_CHARS]
        others = evenly(short, MAX_OTHERS)
        source = unit.source_of(due.taskset)
        return _Scan(self._host, source, due.source_digest, chosen, others, self._limits, self._now)


def _log(done: TasksetCheck) -> None:
    said = {"taskset": done.taskset, "tasks": done.num_looked, "findings": done.num_findings}
    level = logging.WARNING if done.num_findings else logging.INFO
    log.log(level, "leaks_searched", extra={**said, "why": done.stopped})


def _secrets(task: RunnableTask) -> list[str]:
    return secret_arguments(json.loads(task.args_json))


@dataclass(slots=True)
class _Scan:
    """chosen: tasks to look at, each with what its agent has to find. others: the same of all tasks, or of
    some of many; a text that names several of them lists candidates, and gives none away. why: why some were
    not looked at; cut: which text was not read whole."""

    host: EnvironmentHost
    source: EnvironmentSource
    source_digest: str
    chosen: dict[RunnableTask, list[str]]
    others: Sequence[str]
    limits: ScanLimits
    now: Callable[[], datetime]
    found: list[TaskLeak] = field(default_factory=list)
    num_looked: int = 0
    why: str = ""
    cut: str = ""

    async def run(self) -> None:
        """Look at each chosen task; what cannot be looked at is noted."""
        if not self.chosen:
            self.why = _NO_SECRETS
        try:
            async with asyncio.timeout(self.limits.total_s):
                for task, secrets in self.chosen.items():
                    await self._look(task, secrets)
        except TimeoutError:
            self.why = f"{self.limits.total_s:g} s were over"
        except SecretsWithheld as error:
            self.why = f"nothing was searched: {error}"

    def done(self, due: TasksetCheck) -> TasksetCheck:
        """The check with what was found."""
        leaks = list(dict.fromkeys(self.found))
        return replace(
            due,
            num_tasks=len(self.chosen),
            num_looked=self.num_looked,
            num_findings=len(leaks),
            findings=tuple(_sentence(str(leak)) for leak in leaks[:MAX_FINDINGS]),
            stopped=_sentence("; ".join(filter(None, (self.why, self.cut)))),
        )

    async def _look(self, task: RunnableTask, secrets: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(self.limits.call_s):
                await self._read(task, secrets)
            self.num_looked += 1
        except SecretsWithheld:
            raise
        except TimeoutError as error:
            self._note(task, str(error) or f"took longer than {self.limits.call_s:g} s")
        except Exception as error:  # this task alone, whatever its environment does
            self._note(task, str(error) or type(error).__name__)

    def _note(self, task: RunnableTask, why: str) -> None:
        self.why = self.why or f"task {task.slug}: {why}"

    async def _read(self, task: RunnableTask, secrets: Sequence[str]) -> None:
        """Its prompt, and what each tool says to arguments that mean nothing. Each is judged before the next
        one is read, which may hang."""
        deadline = self.now() + timedelta(seconds=self.limits.call_s)
        episode = EpisodeToPlay(
            f"leak scan of {task.slug}",
            self.source,
            task.scenario,
            task.args_json,
            deadline,
            source_digest=self.source_digest,
            without_secrets=True,  # its tools may write with them
        )
        environment = await self.host.start(episode)
        try:
            await self._judge(task, secrets, IN_PROMPT, text_of_prompt(environment.prompt))
            for tool in environment.tools:
                arguments = idle_arguments(tool.parameters)
                said = await _say(environment, tool.name, arguments)
                await self._judge(task, secrets, said_by_tool(tool.name, arguments), said)
        finally:
            await environment.close()

    async def _judge(self, task: RunnableTask, secrets: Sequence[str], where: str, text: str) -> None:
        if len(text) > MAX_TEXT_CHARS:
            searched = f"has {len(text):,} characters, of which the first {MAX_TEXT_CHARS:,} were searched"
            self.cut = self.cut or f"task {task.slug}: {where} {searched}"
        # In a thread: the planner answers meanwhile.
        held = await asyncio.to_thread(leaked, secrets, text[:MAX_TEXT_CHARS], self.others)
        self.found += [TaskLeak(task.slug, where, one) for one in held]


def _sentence(text: str) -> str:
    return one_line(text)[:MAX_FINDING_CHARS]


async def _say(environment: LiveEnvironment, name: str, arguments: dict[str, object]) -> str:
    """What a tool answers; empty where the call fails, which gives nothing away."""
    try:
        return (await environment.call_tool(name, arguments)).content
    except EpisodeError:
        return ""
