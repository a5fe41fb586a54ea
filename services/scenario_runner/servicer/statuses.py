"""The gRPC status of each of this service's errors.

An error of an episode also has a `failure_kind`. It travels beside the status, in trailing metadata
`upcycle-error-kind`, and becomes the `kind` of `episode.failed`.
"""

from collections.abc import Mapping
from typing import Final

import grpc

from scenario_runner.domain.environments import (
    BodyUnreadable,
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeFault,
    EpisodeNotOpen,
    EpisodeTimeout,
    FleetFull,
    PolicyFault,
    UnknownLease,
)
from scenario_runner.domain.runs import AlreadyTaken, ForOperatorsOnly, NotFound, Refused
from service_kit.errors import InvalidRequest

TASKSET_STATUSES: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyTaken: grpc.StatusCode.ALREADY_EXISTS,
    ForOperatorsOnly: grpc.StatusCode.PERMISSION_DENIED,
}
ENVIRONMENT_STATUSES: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    EpisodeNotOpen: grpc.StatusCode.FAILED_PRECONDITION,
    FleetFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnknownLease: grpc.StatusCode.NOT_FOUND,
    EnvironmentLost: grpc.StatusCode.NOT_FOUND,
    EnvironmentBroken: grpc.StatusCode.ABORTED,
    EpisodeFault: grpc.StatusCode.ABORTED,
    EpisodeTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    PolicyFault: grpc.StatusCode.ABORTED,
    BodyUnreadable: grpc.StatusCode.DATA_LOSS,
}
