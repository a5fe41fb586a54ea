"""A session whose scenario and tools run in a process of its own, forked when it is first needed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcycle.environment.channel.client import WEDGED_MARGIN_S, ChannelTimeout
from upcycle.environment.channel.frames import INVALID_REQUEST, SERVER_ERROR, ChannelClosed, ChannelError
from upcycle.environment.channel.session import PARKED_S, new_session_id
from upcycle.errors import InfrastructureError
from upcycle.states import STATE_S

if TYPE_CHECKING:
    from upcycle.environment.session_forks import SessionForks, SessionProcess

CANCEL_S: Final = 10.0
"""How long a cancelled scenario may clean up; its process is ended then."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """max_sessions: processes at once. call_s: how long one call may take, a grade included; its process is
    ended then. parked_s: how long a started task waits for a client that has hung up."""

    max_sessions: int = 64
    call_s: float = 3600.0
    parked_s: float = PARKED_S


class ForkedSession:
    """Implements Session over the control channel of a forked process."""

    def __init__(self, forks: "SessionForks", limits: SessionLimits) -> None:
        self.session_id = new_session_id()
        self.is_unused = True
        self.has_task = False
        self.is_busy = False
        self._forks = forks
        self._limits = limits
        self._process: SessionProcess | None = None
        self._forking = asyncio.Lock()
        self._lost = ""
        self._tool_limits: dict[str, float] | None = None
        self._margin_s = WEDGED_MARGIN_S

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        failed: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """In the process of the session, or a new one where that ended."""
        self._refuse_if_busy()
        self.is_unused, self.has_task, self._lost = False, False, ""
        limit_s = min(self._limits.call_s, timeout_s or self._limits.call_s)
        params = {"id": name, "args": dict(arguments), "timeout_s": limit_s}
        params |= {} if failed is None else {"failed": dict(failed)}
        reply = await self._while_busy("tasks.start", params)
        self.has_task = True
        self._margin_s = WEDGED_MARGIN_S + STATE_S if "state" in reply else WEDGED_MARGIN_S
        return reply

    async def generate(self, name: str, seed: int, parent: Mapping[str, Any]) -> dict[str, Any]:
        """In the process of the session, or a new one where that ended."""
        self._refuse_if_busy()
        self.is_unused = False
        return await self._while_busy("tasks.generate", {"id": name, "seed": seed, "parent": dict(parent)})

    async def grade(
        self, answer: Any, trajectory: Mapping[str, Any] | None, *, judges: bool = False
    ) -> dict[str, Any]:
        """The process stays for tools and the next task, until the connection is closed."""
        self._refuse_if_busy()
        if not self.has_task:
            self._refuse_if_lost()
            raise ChannelError(INVALID_REQUEST, "no task in progress; call tasks.start first")
        self.has_task = False
        params = {"answer": answer, **({"trajectory": dict(trajectory)} if trajectory else {})}
        return await self._while_busy("tasks.grade", {**params, "judges": True} if judges else params)

    async def judged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """In its process."""
        self._refuse_if_busy()
        return await self._while_busy("tasks.judged", params)

    async def cancel(self) -> dict[str, Any]:
        """A scenario that does not end within CANCEL_S is ended with its process."""
        if self._process is not None:
            try:
                await self._process.channel.call("tasks.cancel", {}, timeout_s=CANCEL_S)
            except (ChannelClosed, ChannelTimeout):
                await self.close()
        self.has_task = False
        return {"cancelled": True}

    async def list_tools(self) -> dict[str, Any]:
        """As its process has them: attached MCP servers are its own."""
        listed = await self._ask("tools.list", {}, self._limits.call_s)
        rows = listed["tools"]
        self._tool_limits = {row["name"]: row["timeout_s"] for row in rows if row.get("timeout_s")}
        return listed

    async def last_state(self) -> dict[str, Any]:
        """In its process."""
        self._refuse_if_busy()
        return await self._ask("tasks.state", {}, self._limits.call_s)

    async def call_tool(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """With the caller's deadline, and the tool's own or the session's."""
        if self.is_busy:
            raise ChannelError(INVALID_REQUEST, "a start or grade is running")
        if self._tool_limits is None:
            await self.list_tools()
        own = (self._tool_limits or {}).get(str(params.get("name")), self._limits.call_s)
        asked = params.get("timeout_s")
        limit_s = own if asked is None else min(float(asked), own)
        return await self._ask("tools.call", {**params, "timeout_s": limit_s}, limit_s + self._margin_s)

    async def interrupt(self) -> None:
        """What hangs in a start or grade ends with its process."""
        if self.is_busy:
            await self.close()

    async def close(self) -> None:
        """End its process. Idempotent."""
        process, self._process, self.has_task = self._process, None, False
        if process is not None:
            await self._forks.end(process)

    async def shut_down(self) -> dict[str, Any]:
        """End its process, which shuts down first."""
        await self.close()
        return {"closed": True}

    async def _while_busy(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.is_busy = True
        try:
            return await self._ask(method, params, self._limits.call_s)
        finally:
            self.is_busy = False

    async def _ask(self, method: str, params: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        process = await self._running()
        try:
            return await process.channel.call(method, params, timeout_s=limit_s)
        except ChannelTimeout:
            await self.close()
            self._lost = f"was ended: {method} took longer than its limit of {limit_s:g} s"
        except ChannelClosed:
            self._lost = await process.ended_how()
            await self.close()
        raise self._loss()

    async def _running(self) -> "SessionProcess":
        async with self._forking:
            if self._process is None:
                self._refuse_if_lost()
                alive, limit = self._forks.num_alive, self._limits.max_sessions
                if alive >= limit:
                    raise ChannelError(
                        SERVER_ERROR,
                        f"{alive} session processes run, limit {limit}: close a connection, "
                        "or serve with a higher --max-sessions",
                        "too_many_sessions",
                    )
                try:
                    self._process = await self._forks.fork()
                except InfrastructureError as error:
                    raise ChannelError(SERVER_ERROR, str(error), "environment_lost") from None
            return self._process

    def _refuse_if_busy(self) -> None:
        if self.is_busy:
            raise ChannelError(
                INVALID_REQUEST, "a start or grade is running; wait for it or call tasks.cancel"
            )

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise self._loss()

    def _loss(self) -> ChannelError:
        text = f"the process of session {self.session_id} {self._lost}; tasks.start begins a new one"
        return ChannelError(SERVER_ERROR, text, "environment_lost")
