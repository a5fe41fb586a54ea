"""The tools of the version that is served now, and two more that play one of its scenarios."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from upcycle.developing.versions import Version
from upcycle.environment.channel import ControlChannel
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import Failed, UpcycleError
from upcycle.wording import amount

CALL_S: Final = 600.0
START: Final = "dev_start"
GRADE: Final = "dev_grade"
NO_SCENARIO: Final = (
    f"it declares no scenario, so {START} has nothing to begin: write one below @env.scenario()"
)


class DevTools:
    """Implements ToolBackend. One session at a time: a process in which one task is played."""

    def __init__(self) -> None:
        self._version: Version | None = None
        self._channel: ControlChannel | None = None
        self._opening = asyncio.Lock()
        self._is_over = ""
        self._is_begun = False
        self.why_none = "it is not loaded yet"
        self.taken: frozenset[str] = frozenset()
        """Of our names those that tools of the environment have: theirs are called."""

    @property
    def served(self) -> str:
        """The digest of the version that is served; empty for none."""
        return self._version.digest if self._version is not None else ""

    async def use(self, version: Version) -> None:
        """From now on its tools are called; a task of the version before is over."""
        before, self._version, self.taken = self._version, version, frozenset()
        if self._channel is not None:
            await self._leave()
            self._is_over = "the environment was loaded again, and its task is over; call dev_start again"
        if before is not None:
            await before.end()

    async def close(self) -> None:
        """End the session and the version."""
        await self._leave()
        if self._version is not None:
            await self._version.end()

    async def listed(self) -> list[ToolSpec]:
        """Ours are left out where the environment has tools of that name. Where its own cannot be listed,
        such as of a server that does not start, dev_start says why."""
        channel = await self._session()
        why, theirs = "", list[ToolSpec]()
        try:
            theirs = await channel.list_tools(timeout_s=CALL_S)
        except UpcycleError as error:
            why = str(error)
        ours = [_start_spec(await channel.list_tasks(), why), _GRADE_SPEC]
        self.taken = taken_names(theirs)
        return [*theirs, *(spec for spec in ours if spec.name not in self.taken)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises UpcycleError."""
        if name == START and name not in self.taken:
            return await self._start(arguments)
        over, self._is_over = self._is_over, ""
        if over:
            return ToolResult(over, is_error=True)
        channel = await self._session()
        if name == GRADE and name not in self.taken:
            return await self._grade(channel, str(arguments.get("answer", "")))
        return await channel.call_tool(name, arguments, timeout_s=CALL_S)

    async def _start(self, arguments: Mapping[str, Any]) -> ToolResult:
        """In a new process, so that nothing is left of the task before."""
        await self._leave()
        self._is_over = ""
        channel = await self._session()
        given, scenario = arguments.get("arguments") or {}, str(arguments.get("scenario", ""))
        if not scenario:
            known = ", ".join(row["id"] for row in await channel.list_tasks())
            said = f"{START} needs a scenario: {known}" if known else NO_SCENARIO
            return ToolResult(said, is_error=True)
        prompt = await channel.start(scenario, given, timeout_s=CALL_S)
        self._is_begun = True
        return ToolResult(prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False))

    async def _grade(self, channel: ControlChannel, answer: str) -> ToolResult:
        if not self._is_begun:
            known = ", ".join(row["id"] for row in await channel.list_tasks()) or "none"
            return ToolResult(
                f"no task is begun: call {START} first, with a scenario ({known})", is_error=True
            )
        self._is_begun = False
        return ToolResult(json.dumps(await channel.grade(answer, timeout_s=CALL_S), ensure_ascii=False))

    async def _session(self) -> ControlChannel:
        async with self._opening:
            if self._version is None:
                raise Failed(f"nothing is served: {self.why_none}")
            if self._channel is None or self._channel.is_closed:
                self._channel = await ControlChannel.connect(self._version.url)
                await self._channel.hello()
            return self._channel

    async def _leave(self) -> None:
        channel, self._channel, self._is_begun = self._channel, None, False
        if channel is not None:
            await channel.close()


_GRADE_SPEC: Final = ToolSpec(
    GRADE,
    "Give the answer to the task that dev_start began; returns the reward with its parts.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
)


def taken_names(theirs: Sequence[ToolSpec]) -> frozenset[str]:
    """Of our names those that tools of the environment have."""
    return frozenset({START, GRADE} & {spec.name for spec in theirs})


def _start_spec(tasks: list[dict[str, Any]], why_not: str) -> ToolSpec:
    lines = [f"{row['id']}({', '.join((row.get('args') or {}).get('properties', {}))})" for row in tasks]
    return ToolSpec(
        START,
        "Begin a scenario of the environment, in a fresh process; returns its prompt. Scenarios: "
        f"{'; '.join(lines) or 'none'}" + (f". It does not start: {why_not}" if why_not else ""),
        {
            "type": "object",
            "properties": {
                "scenario": {"type": "string", "enum": [row["id"] for row in tasks]},
                "arguments": {"type": "object"},
            },
            "required": ["scenario"],
        },
    )


@dataclass(frozen=True, slots=True)
class Described:
    """`2 tools, 1 scenario` of a version. lacks: a line for each thing without which none of its scenarios
    can be played here. taken: as of DevTools."""

    text: str
    lacks: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()


async def described(version: Version) -> Described:
    """What it has, and what it lacks."""
    channel = await ControlChannel.connect(version.url)
    try:
        await channel.hello()
        num_scenarios = len(await channel.list_tasks())
        scenarios = amount(num_scenarios, "scenario")
        lacks: tuple[str, ...] = () if num_scenarios else (NO_SCENARIO,)
        try:
            tools = await channel.list_tools(timeout_s=CALL_S)
        except UpcycleError as error:
            return Described(scenarios, (*lacks, f"it does not start, and no tool can be called: {error}"))
        taken = taken_names(tools)
        lacks += tuple(
            f"its own tool {name} stands in the place of ours: give it another name to play scenarios here"
            for name in sorted(taken)
        )
        return Described(f"{amount(len(tools), 'tool')}, {scenarios}", lacks, taken)
    finally:
        await channel.close()
