"""From this service's errors to gRPC statuses.

Beside the status travels the failure's stable word, in trailing metadata `upcycle-error-kind`: it is what
`episode.failed` will say.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from grpc_edge import domain_errors_as_status
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeFault,
    EpisodeNotOpen,
    EpisodeTimeout,
    FleetFull,
    RunnerError,
    UnknownLease,
)
from scenario_runner.domain.runs import AlreadyTaken, InvalidRequest, NotFound, Refused, RegistryAway
from upcycle.rpc import FAILURE_KIND_KEY

MAX_MESSAGE_CHARS: Final = 2000

STATUS_OF: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyTaken: grpc.StatusCode.ALREADY_EXISTS,
    RegistryAway: grpc.StatusCode.UNAVAILABLE,
}
_EPISODE_STATUS_OF: Final[Mapping[type[RunnerError], grpc.StatusCode]] = {
    EpisodeNotOpen: grpc.StatusCode.FAILED_PRECONDITION,
    FleetFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnknownLease: grpc.StatusCode.NOT_FOUND,
    EnvironmentLost: grpc.StatusCode.NOT_FOUND,
    EnvironmentBroken: grpc.StatusCode.ABORTED,
    EpisodeFault: grpc.StatusCode.ABORTED,
    EpisodeTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def kind_of(error: RunnerError) -> str:
    """The word for `episode.failed`."""
    return error.fault if isinstance(error, EpisodeFault) else error.kind


@asynccontextmanager
async def episode_errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Abort with the status and the kind of what went wrong with an episode's environment."""
    async with domain_errors_as_status(context, STATUS_OF):
        try:
            yield
        except RunnerError as error:
            code = _EPISODE_STATUS_OF.get(type(error))
            if code is None:
                raise
            kind = (FAILURE_KIND_KEY, kind_of(error))
            await context.abort(code, str(error)[:MAX_MESSAGE_CHARS], trailing_metadata=(kind,))
