"""What a caller sees when a remote call fails: one class per reaction, with status, reason and message."""

from types import TracebackType
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from upcycle.errors import Unavailable

DETAILS_KEY: Final = "grpc-status-details-bin"
ERROR_DOMAIN: Final = "upcycle"
FAILURE_KIND_KEY: Final = "upcycle-error-kind"
"""Trailing metadata beside a status: the stable word for what failed."""


class CallTimedOut(Unavailable):
    """The deadline of a call passed without an answer; the service may still be at work on it."""


class RemoteError(Exception):
    """A service answered a call with an error that waiting does not remove.

    `reason` is its error class in UPPER_SNAKE, or the status name; `failure_kind` is the word under
    FAILURE_KIND_KEY, where the service sent one.
    """

    def __init__(
        self, what: str, code: grpc.StatusCode, reason: str, message: str, failure_kind: str | None = None
    ) -> None:
        super().__init__(what, code, reason, message, failure_kind)
        self.what = what
        self.code = code
        self.reason = reason
        self.message = message
        self.failure_kind = failure_kind

    def __str__(self) -> str:
        return f"{self.what}: {self.code.name} {self.reason}: {self.message}".removeprefix(": ")


class RemoteNotFound(RemoteError):
    """The thing asked for does not exist."""


class RemoteConflict(RemoteError):
    """The state is not what the request expects, because it was changed meanwhile. Read it again, then
    decide.
    """


class RemoteDenied(RemoteError):
    """The API key is missing, wrong, or not allowed to do this."""


class RemoteRefused(RemoteError):
    """The request is wrong as it stands, or what it names is damaged. Trying again will not help."""


_LOST: Final = "Internal error from Core"
"""What gRPC's client says when a write failed since the call had ended: the status that ended it is lost."""
REFUSALS: Final = (RemoteNotFound, RemoteConflict, RemoteDenied, RemoteRefused)
"""Answers that say something about the request. Others, such as INTERNAL, say something about the server."""

_NOT_NOW: Final = {grpc.StatusCode.UNAVAILABLE: Unavailable, grpc.StatusCode.DEADLINE_EXCEEDED: CallTimedOut}
_CLASSES: Final[dict[grpc.StatusCode, type[RemoteError]]] = {
    grpc.StatusCode.NOT_FOUND: RemoteNotFound,
    grpc.StatusCode.ABORTED: RemoteConflict,
    grpc.StatusCode.ALREADY_EXISTS: RemoteConflict,
    grpc.StatusCode.UNAUTHENTICATED: RemoteDenied,
    grpc.StatusCode.PERMISSION_DENIED: RemoteDenied,
    grpc.StatusCode.INVALID_ARGUMENT: RemoteRefused,
    grpc.StatusCode.FAILED_PRECONDITION: RemoteRefused,
    grpc.StatusCode.OUT_OF_RANGE: RemoteRefused,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RemoteRefused,
    grpc.StatusCode.UNIMPLEMENTED: RemoteRefused,
    grpc.StatusCode.DATA_LOSS: RemoteRefused,
}


class remote_errors:
    """Turn gRPC's error into Unavailable or a RemoteError.

    `with remote_errors("open episode"): await stub.Open(request)`
    """

    def __init__(self, what: str = "") -> None:
        """`what` opens the message: which call, on which thing."""
        self._what = what

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises the typed error for a failed call; every other exception passes through. A refusal says all
        that there is to say: no traceback of gRPC stands above it."""
        if isinstance(error, grpc.aio.AioRpcError):
            found = remote_error(self._what, error)
            raise found from (None if isinstance(found, REFUSALS) else error)


class peer_errors(remote_errors):
    """As remote_errors, for a service that asks another one: a bug of the other, its stop during the call, or
    a key that it does not know (yet), is no answer, and the same call may succeed later."""

    def __init__(self, what: str, answers: tuple[type[RemoteError], ...] = REFUSALS) -> None:
        """answers: the errors that the caller decides about; all others raise Unavailable with their text."""
        super().__init__(what)
        self._answers = answers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises Unavailable, or one of `answers`."""
        found = remote_error(self._what, error) if isinstance(error, grpc.aio.AioRpcError) else error
        is_answer = isinstance(found, self._answers) and not isinstance(found, RemoteDenied)
        if isinstance(found, RemoteError) and not is_answer:
            found = Unavailable(str(found))
        if found is not None and found is not error:
            raise found from error


def remote_error(what: str, error: grpc.aio.AioRpcError) -> Unavailable | RemoteError:
    """The typed error for a failed call that was about `what`."""
    code, message = error.code(), error.details() or ""
    details = trailing(error, DETAILS_KEY)
    reason = (_reason_in(details) if isinstance(details, bytes) else None) or code.name
    if message == _LOST:
        message = "the service ended the call before the whole request was sent; its log has the reason"
    if code in _NOT_NOW:
        return _NOT_NOW[code](f"{what}: {code.name} {reason}: {message}".removeprefix(": "))
    return _CLASSES.get(code, RemoteError)(what, code, reason, message, failure_kind(error))


def failure_kind(error: grpc.aio.AioRpcError) -> str | None:
    """The word under FAILURE_KIND_KEY; None where the service sent none."""
    sent = trailing(error, FAILURE_KIND_KEY)
    return sent.decode("ascii", "replace") if isinstance(sent, bytes) else sent


def trailing(error: grpc.aio.AioRpcError, key: str) -> str | bytes | None:
    """The first value of a key in the trailing metadata."""
    return next((value for name, value in error.trailing_metadata() if name == key), None)


def _reason_in(details: bytes) -> str | None:
    status, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    try:
        status.ParseFromString(details)
    except DecodeError:  # a proxy's own idea of details: the status code still tells what to do
        return None
    for packed in status.details:
        if packed.Is(info.DESCRIPTOR):
            packed.Unpack(info)
            return str(info.reason)
    return None
