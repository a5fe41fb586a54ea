"""How an environment attaches its MCP servers: in this process, or, where they name secrets and its process
must not have the values, in one beside it that has them.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcycle.environment.server_secrets import (
    NOTHING_HIDDEN,
    HiddenValues,
    filled,
    named_secrets,
    profile_values,
)
from upcycle.environment.tools import Tool, ToolResult, ToolSpec
from upcycle.errors import InfrastructureError, ToolFailed

if TYPE_CHECKING:
    from upcycle.environment.channel.client import ControlChannel
    from upcycle.environment.mcp import McpTools

START_S: Final = 60.0
"""For the servers of the other process, where the caller sets no limit."""


class Attaching:
    """The MCP servers of one environment. hidden: values that this process has, to be cut out of all that it
    says."""

    def __init__(self) -> None:
        self.config: dict[str, Mapping[str, Any]] = {}
        self.hidden: HiddenValues = NOTHING_HIDDEN
        self._given: Mapping[str, str] | None = None
        self._apart: ServersApart | None = None
        self._taken: frozenset[str] = frozenset()
        self._here: McpTools | None = None

    @property
    def secrets(self) -> dict[str, str]:
        """Of each secret that servers name, the first server that does."""
        return named_secrets(self.config)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Of the servers that are attached."""
        apart = self._apart.tools if self._apart else {}
        return {**apart, **(self._here.tools if self._here else {})}

    def give(self, values: Mapping[str, str]) -> None:
        """The secrets, so that nothing asks the user's profile for them."""
        self._given = dict(values)
        self.hidden = HiddenValues(values)

    def attach_apart(self, sock: socket.socket) -> None:
        """Servers that name secrets are reached over this socket, at whose other end `of_secrets` is
        served."""
        self._apart = ServersApart(sock)

    def of_secrets(self, values: Mapping[str, str], taken: frozenset[str]) -> "Attaching":
        """Of the servers that name secrets alone, with the values. taken: names that their tools may not
        have."""
        made = Attaching()
        made.config = {name: one for name, one in self.config.items() if named_secrets({name: one})}
        made.give(values)
        made._taken = taken
        return made

    async def attach(self, taken: frozenset[str], limit_s: float | None) -> None:
        """Idempotent. taken: names of the environment's own tools. Raises ToolFailed, SecretMissing."""
        if not self.config or self._here is not None:
            return
        from upcycle.environment.mcp import McpTools

        # Servers that name secrets are first, wherever they run: a name that is taken goes to the same tool.
        config = dict(sorted(self.config.items(), key=lambda one: not named_secrets(dict([one]))))
        taken |= self._taken
        if self._apart is not None:
            await self._apart.attach(START_S if limit_s is None else limit_s)
            config = {name: one for name, one in config.items() if not named_secrets({name: one})}
            taken |= frozenset(self._apart.tools)
        values = self._values(config)
        self._here = await McpTools.connect(
            filled(config, values), taken=taken, limit_s=limit_s, hidden=self.hidden
        )

    async def detach(self) -> None:
        """Stop them. Idempotent."""
        here, self._here = self._here, None
        if here is not None:
            await here.close()
        if self._apart is not None:
            await self._apart.close()

    def _values(self, config: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
        if self._given is None:
            values = profile_values(named_secrets(config))
            self.hidden = HiddenValues(values)
            return values
        return self._given


class ServersApart:
    """Servers that another process has attached, over its control channel."""

    def __init__(self, sock: socket.socket) -> None:
        self.tools: dict[str, Tool] = {}
        self._sock = sock
        self._channel: ControlChannel | None = None

    async def attach(self, limit_s: float) -> None:
        """Have them started there. Raises ToolFailed."""
        from upcycle.environment.channel.client import ControlChannel

        if self._channel is None:
            self._channel = await ControlChannel.over(self._sock, speaks_tools=True)
        with _answering("the MCP servers that name secrets"):
            listed = await self._channel.list_tools(timeout_s=limit_s)
        self.tools = {spec.name: ApartTool(spec, self._channel) for spec in listed}

    async def close(self) -> None:
        """Hang up: the other process ends. Idempotent."""
        if self._channel is not None:
            await self._channel.close()


@dataclass(frozen=True, slots=True)
class ApartTool:
    """Implements Tool: one of a server that another process has attached."""

    spec: ToolSpec
    channel: "ControlChannel"

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises ToolFailed; from InfrastructureError when the server or its process is gone."""
        from upcycle.environment.mcp import CALL_TIMEOUT_S

        with _answering(self.spec.name):
            return await self.channel.call_tool(self.spec.name, arguments, timeout_s=CALL_TIMEOUT_S)


@contextmanager
def _answering(what: str) -> Iterator[None]:
    """Around a call of the other process: what it refuses is a ToolFailed, and so is its end."""
    from upcycle.environment.channel.client import ChannelTimeout
    from upcycle.environment.channel.frames import ChannelClosed, ChannelError

    try:
        yield
    except ChannelError as error:
        is_external = error.error_kind == InfrastructureError.kind
        raise ToolFailed(str(error)) from (InfrastructureError(str(error)) if is_external else error)
    except (ChannelClosed, ChannelTimeout) as error:
        gone = f"{what}: the process of the MCP servers that name secrets does not answer: {error}"
        raise ToolFailed(gone) from InfrastructureError(gone)
