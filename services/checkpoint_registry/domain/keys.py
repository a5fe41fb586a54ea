"""Keys that an operator makes: their form, what may be asked for, when one is valid."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from checkpoint_registry.domain.models import validate_slug
from grpc_edge.issued_keys import INFERENCE, PLATFORM, PREFIX
from service_kit.errors import InvalidRequest
from upcycle.api.common.v1.access_pb2 import Role

MAX_VALID: Final = 1000
"""Keys that are valid at one time: each server has all of them in memory."""
REVOKED_SHOWN: Final = timedelta(days=30)
"""How long servers are told of a revoked key; afterwards it is only missing."""
MIN_EXPIRY_S: Final = 1.0
MAX_EXPIRY_S: Final = 10 * 366 * 86_400.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MODEL: Final = f"{INFERENCE}:"
_MAX_SCOPES: Final = 32
ROLES: Final = {Role.ROLE_USER: "user", Role.ROLE_OPERATOR: "operator"}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One row. sha256: of the whole key, which is kept nowhere."""

    key_id: str
    sha256: str
    name: str
    role: Role.ValueType
    scopes: tuple[str, ...]
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""
    last_used_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """What an operator asks for. expires_in_s None: it does not expire."""

    name: str
    role: Role.ValueType
    scopes: tuple[str, ...]
    expires_in_s: float | None

    def validate(self) -> None:
        """Raises InvalidRequest."""
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"name {self.name!r:.80} is none of a key: 1 to 64 of a-z A-Z 0-9 . _ @ -, beginning with a "
                "letter or a digit"
            )
        if self.role not in ROLES:
            raise InvalidRequest(f"role {Role.Name(self.role)} is none of a key: user or operator")
        if self.expires_in_s is not None and not MIN_EXPIRY_S <= self.expires_in_s <= MAX_EXPIRY_S:
            raise InvalidRequest(
                f"a key expires after {MIN_EXPIRY_S:g} s to {MAX_EXPIRY_S:g} s, not after "
                f"{self.expires_in_s:g} s"
            )
        _check_scopes(self.scopes)

    @property
    def granted(self) -> tuple[str, ...]:
        """The scopes in order, each once; both where none was asked for."""
        return tuple(sorted(set(self.scopes))) or (INFERENCE, PLATFORM)


def _check_scopes(scopes: Iterable[str]) -> None:
    """Raises InvalidRequest."""
    listed = list(scopes)
    if len(listed) > _MAX_SCOPES:
        raise InvalidRequest(f"a key has at most {_MAX_SCOPES} scopes, not {len(listed)}")
    for scope in listed:
        if scope.startswith(_MODEL):
            validate_slug(scope.removeprefix(_MODEL))
        elif scope not in (PLATFORM, INFERENCE):
            raise InvalidRequest(f"scope {scope!r:.80} is none of {PLATFORM}, {INFERENCE}, {INFERENCE}:MODEL")
    if INFERENCE in listed and any(scope.startswith(_MODEL) for scope in listed):
        raise InvalidRequest(
            f"the scope {INFERENCE} is for all models; leave it out to allow only {INFERENCE}:MODEL"
        )


def key_text(key_id: str, secret: str) -> str:
    """The key as its holder sends it."""
    return f"{PREFIX}{key_id}_{secret}"
