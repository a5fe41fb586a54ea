"""The tools of the version that is served now, and two more that play one of its scenarios."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from upcycle.developing.versions import Version
from upcycle.environment.channel import ControlChannel
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import Failed, UpcycleError
from upcycle.wording import amount

CALL_S: Final = 600.0
START: Final = "dev_start"
GRADE: Final = "dev_grade"


class DevTools:
    """Implements ToolBackend. One session at a time: a process in which one task is played."""

    def __init__(self) -> None:
        self._version: Version | None = None
        self._channel: ControlChannel | None = None
        self._opening = asyncio.Lock()
        self._is_over = ""
        self._is_begun = False
        self.why_none = "it is not loaded yet"

    @property
    def served(self) -> str:
        """The digest of the version that is served; empty for none."""
        return self._version.digest if self._version is not None else ""

    async def use(self, version: Version) -> None:
        """From now on its tools are called; a task of the version before is over."""
        before, self._version = self._version, version
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
        """Ours are left out where the environment has tools of that name."""
        channel = await self._session()
        theirs = await channel.list_tools(timeout_s=CALL_S)
        names = {spec.name for spec in theirs}
        ours = [_start_spec(await channel.list_tasks()), _GRADE_SPEC]
        return [*theirs, *(spec for spec in ours if spec.name not in names)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises UpcycleError."""
        if name == START:
            return await self._start(arguments)
        over, self._is_over = self._is_over, ""
        if over:
            return ToolResult(over, is_error=True)
        channel = await self._session()
        if name == GRADE:
            return await self._grade(channel, str(arguments.get("answer", "")))
        return await channel.call_tool(name, arguments, timeout_s=CALL_S)

    async def _start(self, arguments: Mapping[str, Any]) -> ToolResult:
        """In a new process, so that nothing is left of the task before."""
        await self._leave()
        self._is_over = ""
        channel = await self._session()
        given = arguments.get("arguments") or {}
        prompt = await channel.start(str(arguments.get("scenario", "")), given, timeout_s=CALL_S)
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


def _start_spec(tasks: list[dict[str, Any]]) -> ToolSpec:
    lines = [f"{row['id']}({', '.join((row.get('args') or {}).get('properties', {}))})" for row in tasks]
    return ToolSpec(
        START,
        "Begin a scenario of the environment, in a fresh process; returns its prompt. Scenarios: "
        f"{'; '.join(lines) or 'none'}",
        {
            "type": "object",
            "properties": {
                "scenario": {"type": "string", "enum": [row["id"] for row in tasks]},
                "arguments": {"type": "object"},
            },
            "required": ["scenario"],
        },
    )


async def described(version: Version) -> str:
    """`2 tools, 1 scenario` of a version; what its attached servers say, where they do not start."""
    channel = await ControlChannel.connect(version.url)
    try:
        await channel.hello()
        num_scenarios = len(await channel.list_tasks())
        scenarios = amount(num_scenarios, "scenario")
        try:
            num_tools = len(await channel.list_tools(timeout_s=CALL_S))
        except UpcycleError as error:
            return f"{scenarios}; its tools cannot be listed: {error}"
        return f"{amount(num_tools, 'tool')}, {scenarios}"
    finally:
        await channel.close()
