"""Frames of the control channel: compact JSON-RPC 2.0 objects, one per line, at most 16 MiB each."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from upcycle.errors import Unavailable, UpcycleError

MAX_FRAME_BYTES = 16 * 1024 * 1024

PARSE_ERROR = -32700
INVALID_REQUEST = -32600  # wrong moment: no task in progress, unknown session, a call while another runs
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_ERROR = -32000  # anything raised; message is its text, data.kind its type

FRAME_TOO_LARGE = "frame_too_large"

Frame = dict[str, Any]


class ChannelError(UpcycleError):
    """An error frame: `code` as above, `error_kind` the stable word of what failed (scenario_error, …),
    `traceback` of the environment's own code where it raised."""

    kind = "channel_error"

    def __init__(self, code: int, message: str, error_kind: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.error_kind = error_kind
        self.traceback = traceback


class FrameTooLarge(ChannelError):
    """A frame above 16 MiB: one that was read ends the connection after its error frame. about: the call that
    it is of, where that is known."""

    def __init__(self, size: int, about: str = "") -> None:
        of = f" of {about}" if about else ""
        text = f"frame{of} of at least {size} bytes, limit {MAX_FRAME_BYTES} bytes; send less"
        super().__init__(SERVER_ERROR, text, FRAME_TOO_LARGE)


class ChannelClosed(UpcycleError, ConnectionError):
    """The connection was closed or lost."""

    kind = "environment_lost"


class NothingServed(ChannelClosed, Unavailable):
    """No environment answers at an address."""


def encode(frame: Mapping[str, Any], about: str = "") -> bytes:
    """One line; half a character becomes a question mark. about: the call, for the error. Raises
    FrameTooLarge."""
    line = json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    if len(line) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(line), about)
    return line + b"\n"


def call_named(frame: Mapping[str, Any]) -> str:
    """What a call is called in errors: its method, and the tool or scenario that it names."""
    params = frame.get("params")
    subject = params.get("name", params.get("id")) if isinstance(params, dict) else None
    method = f"{frame.get('method')!s:.200}"
    return f"{method} {subject!r:.200}" if isinstance(subject, str) else method


def decode(line: bytes) -> Frame:
    """The object of one line, without halves of characters. Raises ChannelError (PARSE_ERROR or
    INVALID_REQUEST)."""
    try:
        frame = json.loads(line.decode())
        if b"\\ud" in line or b"\\uD" in line:
            frame = json.loads(json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ChannelError(PARSE_ERROR, f"frame is not JSON: {error}") from error
    if not isinstance(frame, dict):
        raise ChannelError(INVALID_REQUEST, f"frame is of type {type(frame).__name__}, not an object")
    return frame


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Around code that takes apart what the other side sent. Raises ChannelError if it has another form."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ChannelError(SERVER_ERROR, f"{what} does not follow the protocol: {error!r:.200}") from error


def result_frame(call_id: Any, result: Mapping[str, Any]) -> Frame:
    """The reply of a call that worked."""
    return {"jsonrpc": "2.0", "id": call_id, "result": dict(result)}


def error_frame(call_id: Any, error: ChannelError) -> Frame:
    """The reply of a call that did not. id is null where the call could not be read."""
    body: Frame = {"code": error.code, "message": str(error) or "error"}
    if error.error_kind:
        body["data"] = {"kind": error.error_kind}
        if error.traceback:
            body["data"]["traceback"] = error.traceback
    return {"jsonrpc": "2.0", "id": call_id, "error": body}
