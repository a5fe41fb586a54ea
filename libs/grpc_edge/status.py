"""From domain error to gRPC status: by type, by one table per service, never by message text.

The reason (class name in UPPER_SNAKE) travels as google.rpc.ErrorInfo in `grpc-status-details-bin`, which
clients of every language read.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from grpc_edge.access import KeyEnded
from grpc_edge.limits import MAX_STATUS_MESSAGE_CHARS
from service_kit.deadlines import DeadlineExceeded
from upcycle.errors import Unavailable
from upcycle.rpc.errors import DETAILS_KEY, ERROR_DOMAIN, FAILURE_KIND_KEY

log = logging.getLogger(__name__)

StatusTable = Mapping[type[Exception], grpc.StatusCode]
"""Domain error class -> status; a subclass uses its nearest ancestor's entry."""


class MalformedRequest(ValueError):
    """What was sent is no message of the contract."""


EVERYWHERE: Final[StatusTable] = {
    MalformedRequest: grpc.StatusCode.INVALID_ARGUMENT,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    KeyEnded: grpc.StatusCode.UNAUTHENTICATED,
}


@asynccontextmanager
async def domain_errors_as_status(
    context: grpc.aio.ServicerContext[Any, Any], table: StatusTable
) -> AsyncIterator[None]:
    """Abort the call with the status that `table` gives the error, else INTERNAL with an id for the log."""
    try:
        yield
    except (grpc.aio.AbortError, asyncio.CancelledError):
        raise
    except Exception as error:
        code = status_for(error, table)
        if code is None:
            await _abort_as_internal(context, error)
        await abort(context, code, reason_of(error), str(error), failure_kind=failure_kind_of(error))


def status_for(error: Exception, table: StatusTable) -> grpc.StatusCode | None:
    """The status of the most specific entry that `error` is an instance of; None when there is none."""
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
        if kind in EVERYWHERE:
            return EVERYWHERE[kind]
    return None


def reason_of(error: Exception) -> str:
    """`HeadMoved` -> `HEAD_MOVED`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(error).__name__).upper()


def failure_kind_of(error: Exception) -> str | None:
    """The word that `episode.failed` will carry, of errors that have one as `failure_kind`."""
    kind = getattr(error, "failure_kind", None)
    return kind if isinstance(kind, str) else None


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    reason: str,
    message: str,
    *,
    failure_kind: str | None = None,
    **metadata: str,
) -> NoReturn:
    """End the call with a status that carries a machine-readable reason, and the failure's kind if it has
    one.
    """
    short = message if len(message) <= MAX_STATUS_MESSAGE_CHARS else message[:MAX_STATUS_MESSAGE_CHARS] + "…"
    info = error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata)
    packed = any_pb2.Any()
    packed.Pack(info)
    details = status_pb2.Status(code=code.value[0], message=short, details=[packed])
    trailing: list[tuple[str, str | bytes]] = [(DETAILS_KEY, details.SerializeToString())]
    if failure_kind is not None:
        trailing.append((FAILURE_KIND_KEY, failure_kind))
    await context.abort(code, short, trailing_metadata=tuple(trailing))
    raise AssertionError("context.abort returned")


async def _abort_as_internal(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    error_id = uuid.uuid4().hex[:12]
    log.error("unexpected_error_in_rpc", extra={"error_id": error_id}, exc_info=error)
    message = f"internal error {error_id}; the server's log has the details under this id"
    await abort(context, grpc.StatusCode.INTERNAL, "INTERNAL", message, error_id=error_id)
