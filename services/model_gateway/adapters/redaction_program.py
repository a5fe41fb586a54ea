"""The program in which the operator's redaction runs: `python -m model_gateway.adapters.redaction_program
module:function`. One call after the other, in frames of a length and JSON; ends with its standard input.

It imports nothing but the function, and what that prints goes nowhere: it may be content.
"""

import ctypes
import importlib
import inspect
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final

HEADER: Final = struct.Struct(">I")
_PR_SET_PDEATHSIG: Final = 1
Function = Callable[[Any], Any]


class CannotLoad(Exception):
    """There is no such function."""


def load(path: str) -> Function:
    """Raises CannotLoad."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise CannotLoad("expected package.module:function")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise CannotLoad(f"{type(error).__name__}: {error}") from error
    if not callable(function):
        raise CannotLoad(f"it is of type {type(function).__name__}, no function")
    if inspect.iscoroutinefunction(function):
        raise CannotLoad("it is an async function, expected a plain one: it has a process of its own")
    return function  # type: ignore[no-any-return]


def answer(function: Function, asked: bytes) -> bytes:
    """What the function makes of a call; of a failure its kind alone, as a message may have content."""
    try:
        said: dict[str, Any] = {"call": function(json.loads(asked))}
        return json.dumps(said).encode()
    except BaseException as error:
        return json.dumps({"failed": type(error).__name__}).encode()


def _read(source: BinaryIO) -> bytes | None:
    header = source.read(HEADER.size)
    return source.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else None


def _write(sink: BinaryIO, data: bytes) -> None:
    sink.write(HEADER.pack(len(data)) + data)
    sink.flush()


def main() -> None:
    """Until the gateway is gone."""
    if sys.platform == "linux":  # a function that never returns would outlive a gateway that is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the gateway ends this process
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        function = load(sys.argv[1])
    except CannotLoad as error:
        _write(sink, json.dumps({"refused": str(error)}).encode())
        return
    _write(sink, b"{}")
    while (asked := _read(source)) is not None:
        _write(sink, answer(function, asked))


if __name__ == "__main__":
    main()
