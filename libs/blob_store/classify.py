"""From what the S3 client raises to what a caller can react to. By status and code, never by message text."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import urllib3.exceptions
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

_FULL_CODES: Final = frozenset(
    {
        "StorageFull",
        "XMinioStorageFull",
        "InsufficientStorage",
        "QuotaExceeded",
        "XMinioAdminBucketQuotaExceeded",
    }
)
_DENIED_CODES: Final = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
)
_PASSING_CODES: Final = frozenset(
    {
        "InternalError",
        "ServiceUnavailable",
        "SlowDown",
        "RequestTimeout",
        "OperationAborted",
        "TooManyRequests",
    }
)
_HTTP_INSUFFICIENT_STORAGE: Final = 507
_HTTP_SERVER_ERRORS: Final = range(500, 600)


class Kind(Enum):
    """What a failure means."""

    PRECONDITION = auto()
    MISSING = auto()
    NO_BUCKET = auto()
    DENIED = auto()
    FULL = auto()
    PASSING = auto()
    """The store could not be reached, or did not answer as S3."""
    SERVER_ERROR = auto()
    """The store answered that it failed."""
    OTHER = auto()


TRANSIENT: Final = frozenset({Kind.PASSING, Kind.SERVER_ERROR})

CAUGHT: Final = (MinioException, urllib3.exceptions.HTTPError)
"""Everything that the client raises when a request goes wrong."""


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """One failed request."""

    kind: Kind
    detail: str


_BY_CODE: Final = {
    "PreconditionFailed": Kind.PRECONDITION,
    "ConditionalRequestConflict": Kind.PASSING,
    "BadDigest": Kind.PASSING,  # the body was damaged on its way
    "NoSuchKey": Kind.MISSING,
    "ResourceNotFound": Kind.MISSING,
    "NoSuchBucket": Kind.NO_BUCKET,
    **dict.fromkeys(_FULL_CODES, Kind.FULL),
    **dict.fromkeys(_DENIED_CODES, Kind.DENIED),
    **dict.fromkeys(_PASSING_CODES, Kind.SERVER_ERROR),
}


def classify(error: Exception) -> StoreFailure:
    """Say what a client error means."""
    if isinstance(error, S3Error):
        return StoreFailure(_of_s3_error(error), f"{error.code}: {error.message}")
    if isinstance(error, ServerError):
        return StoreFailure(_of_status(error.status_code), str(error))
    if isinstance(error, InvalidResponseError):
        return StoreFailure(Kind.PASSING, str(error)[:300])
    if isinstance(error, urllib3.exceptions.HTTPError):
        return StoreFailure(Kind.PASSING, f"{type(error).__name__}: {error}")
    return StoreFailure(Kind.OTHER, f"{type(error).__name__}: {error}")


def _of_s3_error(error: S3Error) -> Kind:
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return _of_status(error.response.status)


def _of_status(status: int) -> Kind:
    if status == _HTTP_INSUFFICIENT_STORAGE:
        return Kind.FULL
    return Kind.SERVER_ERROR if status in _HTTP_SERVER_ERRORS else Kind.OTHER
