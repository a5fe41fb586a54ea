"""The operator's redaction of captured calls, in a process of its own: a function that hangs, also in a
regular expression, which no thread can be stopped in, is killed, and no client waits for it."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from model_gateway.adapters.redaction_program import HEADER
from service_kit.component import ALARM
from service_kit.settings import SettingsError

SETTING: Final = "MODEL_GATEWAY_CAPTURE_REDACT"
_PROGRAM: Final = "model_gateway.adapters.redaction_program"
_LOADED_WITHIN_S: Final = 30.0
_ALARM_AFTER: Final = 5
MAX_ANSWER_BYTES: Final = 256 << 20


class RedactionFailed(Exception):
    """Nothing is known of the call but that it must not be stored. Has no content of it."""


class RedactionOverran(RedactionFailed):
    """The function took longer than it may."""


class RedactionProcess:
    """`module:function`, called for one captured call at a time."""

    name = "capture_redaction"

    def __init__(self, path: str, *, deadline_s: float) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._process: Process | None = None
        self._failed = 0
        self._why = ""

    async def start(self) -> None:
        """Load the function. Raises SettingsError."""
        try:
            await self._running()
        except RedactionFailed as error:
            await self.stop()
            raise SettingsError("model_gateway", [f"{SETTING}={self._path!r}: {error}"]) from None

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def ready(self) -> str | None:
        """An alarm while no call can be redacted: none is stored then, and clients are answered."""
        if self._failed < _ALARM_AFTER:
            return None
        lost = f"the last {self._failed} captured calls are not stored"
        return f"{ALARM}{lost}, as {self._path} failed: {self._why}"

    async def __call__(self, call: Mapping[str, Any]) -> Any:
        """What the function makes of the call; None: nothing is to be stored. Raises RedactionFailed,
        RedactionOverran, after which the process is another one."""
        try:
            said = await self._asked(orjson.dumps(call))
        except RedactionFailed as error:
            self._failed, self._why = self._failed + 1, str(error)
            raise
        self._failed = 0
        return said

    async def _asked(self, data: bytes) -> Any:
        process = await self._running()
        try:
            async with asyncio.timeout(self._deadline_s):
                reply = await _exchange(process, data)
        except TimeoutError as error:
            await self.stop()
            raise RedactionOverran(f"it took longer than {self._deadline_s:g} s") from error
        except BaseException:
            await self.stop()
            raise
        if "call" not in reply:
            raise RedactionFailed(f"it raised {reply.get('failed', 'nothing that is known')!s:.80}")
        return reply["call"]

    async def _running(self) -> Process:
        """The process, with the function loaded. Raises RedactionFailed."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        command = (sys.executable, "-m", _PROGRAM, self._path)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        self._process = process
        try:
            async with asyncio.timeout(_LOADED_WITHIN_S):
                said = await _answered(process)
        except TimeoutError as error:
            await self.stop()
            raise RedactionFailed(f"it was not loaded within {_LOADED_WITHIN_S:g} s") from error
        if "refused" in said:
            raise RedactionFailed(f"it cannot be loaded: {said['refused']}")
        return process


async def _exchange(process: Process, data: bytes) -> dict[str, Any]:
    sink = cast("asyncio.StreamWriter", process.stdin)
    sink.write(HEADER.pack(len(data)) + data)
    try:
        await sink.drain()
    except ConnectionError as error:
        raise RedactionFailed("its process ended") from error
    return await _answered(process)


async def _answered(process: Process) -> dict[str, Any]:
    source = cast("asyncio.StreamReader", process.stdout)
    try:
        (size,) = HEADER.unpack(await source.readexactly(HEADER.size))
        if size > MAX_ANSWER_BYTES:
            raise RedactionFailed(f"its answer has {size} bytes, at most {MAX_ANSWER_BYTES} are taken")
        said = orjson.loads(await source.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise RedactionFailed("its process ended") from error
    except orjson.JSONDecodeError as error:
        raise RedactionFailed("its answer is no JSON that can be stored") from error
    return dict(said)
