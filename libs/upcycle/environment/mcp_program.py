"""An MCP server as a program of ours: JSON-RPC lines on its standard input and output.

The client's own transport needs time with the square of a line's length, and has no limit: a result of 50 MB
kept an environment busy for minutes. Here a line that is too long is left out, and its call is answered with
an error.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    Received = SessionMessage | Exception

MAX_RESULT_BYTES: Final = 16 << 20
"""Of one message of a server: as much as a frame of the control channel holds."""
TOO_LARGE: Final = -32_801
"""Code of the error in the place of a message that is larger."""
EXIT_S: Final = 2.0
"""How long a program may take to end, after its standard input closed, and again after SIGTERM."""
_POLL_S: Final = 0.01
_DRAIN_BYTES: Final = 1 << 16
_HEAD_CHARS: Final = 4096
_ID: Final = re.compile(r'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{1,200})")')

log = logging.getLogger(__name__)


@asynccontextmanager
async def program_transport(name: str, server: Mapping[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    """Start the program; the streams for a client. At the end it is stopped, with what it started; at once
    where the block is cancelled. name: in what is logged. server: command, args, env, cwd. Raises OSError
    where it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        server["command"],
        *map(str, server.get("args", ())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **server.get("env", {})},
        cwd=server.get("cwd"),
        start_new_session=True,
        limit=MAX_RESULT_BYTES,
    )
    put, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, take = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, name, process, put)
        tasks.start_soon(_write, process, take, put)
        signals: tuple[signal.Signals | None, ...] = (signal.SIGKILL,)
        try:
            yield received, sent
            signals = (None, signal.SIGTERM, signal.SIGKILL)
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                sent.close()
                await _stop(name, process, signals)
            tasks.cancel_scope.cancel()


async def _read(
    name: str, process: asyncio.subprocess.Process, put: "MemoryObjectSendStream[Received]"
) -> None:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with put:
            while (message := await _next_message(name, process.stdout)) is not None:
                await put.send(message)
    while await process.stdout.read(_DRAIN_BYTES):
        pass  # it would not end with a full pipe


async def _next_message(name: str, stdout: asyncio.StreamReader) -> "Received | None":
    """None at the end."""
    try:
        line = await stdout.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        return await _left_out(name, stdout, error)
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as error:
        # Neither the line nor the error, which repeats it, is shown: a server that has a secret may print it.
        log.warning("MCP server %r printed %d bytes that are no message: %s", name, len(line), why(error))
        return ValueError(f"{len(line)} bytes that are no message")


def why(error: ValidationError) -> str:
    """What is wrong, without the input: pydantic shortens it, and half a secret would not be cut out."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def too_large(size: str) -> ErrorData:
    """What a call is answered whose result is too large; the call's own error names the tool and its server.
    size: in bytes."""
    return ErrorData(
        code=TOO_LARGE, message=f"its result has {size} bytes, limit {MAX_RESULT_BYTES}; ask for less"
    )


async def _left_out(
    name: str, stdout: asyncio.StreamReader, error: asyncio.LimitOverrunError
) -> "Received | None":
    """Skip the line; an error for the call that it answers."""
    part = await stdout.readexactly(error.consumed)
    head, num_bytes = part[:_HEAD_CHARS].decode("utf-8", "replace"), len(part)
    while True:
        try:
            num_bytes += len(await stdout.readuntil(b"\n"))
            break
        except asyncio.LimitOverrunError as more:
            num_bytes += len(await stdout.readexactly(more.consumed))
        except asyncio.IncompleteReadError:
            return None
    refusal = too_large(str(num_bytes))
    if (found := _ID.search(head)) is None:
        log.warning("MCP server %r printed a line of %d bytes, limit %d", name, num_bytes, MAX_RESULT_BYTES)
        return ValueError(refusal.message)
    request = int(found[1]) if found[1] else found[2]
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request, error=refusal))


async def _write(
    process: asyncio.subprocess.Process,
    take: "MemoryObjectReceiveStream[SessionMessage]",
    put: "MemoryObjectSendStream[Received]",
) -> None:
    """A program that reads no more is gone for its client, whether it has ended or not."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    with contextlib.suppress(anyio.ClosedResourceError):
        async with take:
            async for one in take:
                text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    process.stdin.write(f"{text}\n".encode())
                    await process.stdin.drain()
                except OSError:
                    await put.aclose()
                    return


async def _stop(
    name: str, process: asyncio.subprocess.Process, signals: Sequence[signal.Signals | None]
) -> None:
    """Its input closes; then the signals go to it and what it started, until it ends."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.close()
    for number in signals:
        if number is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        if await _has_ended(process):
            break
    else:
        log.warning("process %d of MCP server %r does not end", process.pid, name)
    # A child of it may hold its pipes open. Nothing public closes them on this side.
    process._transport.close()  # type: ignore[attr-defined]


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Not process.wait(): that waits for its pipes, too, which a child of it may hold open."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXIT_S):
            while process.returncode is None:
                await asyncio.sleep(_POLL_S)
    return process.returncode is not None
