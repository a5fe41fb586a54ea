"""API keys: `up_<id>_<secret>`. The id finds the row, the secret is only ever kept as its SHA-256.

Keys of the registry begin with `upk_` and are looked up by the SHA-256 of the whole key
(`grpc_edge.issued_keys`).
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from grpc_edge.issued_keys import PLATFORM, PREFIX, IssuedKey
from model_gateway.domain.errors import NotAllowed, NotAuthenticated
from model_gateway.domain.limits import NO_LIMITS, KeyLimits
from upcycle.api.common.v1.access_pb2 import Role

if TYPE_CHECKING:
    from grpc_edge.id_tokens import Person

INFERENCE = "inference"
ADMIN = "admin"
"""Reads the usage of all keys; every key reads its own."""
SCOPES = (INFERENCE, ADMIN)
_ONE_MODEL = f"{INFERENCE}:"

_KEY = re.compile(r"up_([a-z0-9]{8,32})_([A-Za-z0-9_-]{16,128})")
# Compared against when there is no such key, so that an unknown id costs what a wrong secret costs.
_NO_KEY = hashlib.sha256(b"nobody").hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Empty `models` allows every model. may_capture: its holder agreed that a share of its traffic
    is recorded."""

    key_id: str
    secret_sha256: str
    name: str
    scopes: frozenset[str]
    models: frozenset[str]
    created_at: datetime
    revoked_at: datetime | None = None
    may_capture: bool = False
    limits: KeyLimits = NO_LIMITS

    def require(self, scope: str) -> None:
        """Raises NotAllowed."""
        if scope not in self.scopes:
            raise NotAllowed(f"key {self.key_id!r} lacks the scope {scope!r}; it has {sorted(self.scopes)}")

    def may_use(self, model: str) -> bool:
        """Whether the allow-list covers the model."""
        return not self.models or model in self.models


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """What a caller sent, taken apart."""

    key_id: str
    secret: str


def parse_key(text: str) -> PresentedKey:
    """Raises NotAuthenticated."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise NotAuthenticated
    return PresentedKey(found[1], found[2])


def bearer_text(authorization: str | None) -> str:
    """The key of an Authorization header, unparsed. Raises NotAuthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticated
    return token.strip()


def is_issued(text: str) -> bool:
    """Whether it has the form of a key of the registry."""
    return text.startswith(PREFIX)


def issued_key(key: IssuedKey) -> ApiKey:
    """A key of the registry as one of the gateway: `inference` allows every model, `inference:MODEL` one. An
    operator's that is for the platform has scope admin."""
    models = {scope.removeprefix(_ONE_MODEL) for scope in key.scopes if scope.startswith(_ONE_MODEL)}
    scopes = {INFERENCE} if models or INFERENCE in key.scopes else set[str]()
    if key.role == Role.ROLE_OPERATOR and PLATFORM in key.scopes:
        scopes.add(ADMIN)
    return ApiKey(key.key_id, "", key.name, frozenset(scopes), frozenset(models), key.created_at)


def persons_key(person: "Person") -> ApiKey:
    """Of the owner of a token: every model, and of an operator scope admin. key_id: the same in each token of
    a person, as limits and usage are of a key."""
    digest = hashlib.sha256(person.name.encode()).hexdigest()[:16]
    scopes = {INFERENCE, *([ADMIN] if person.role == Role.ROLE_OPERATOR else [])}
    began = datetime.fromtimestamp(0, UTC)  # no person made it
    return ApiKey(f"oidc{digest}", "", person.name, frozenset(scopes), frozenset(), began)


def check(presented: PresentedKey, stored: ApiKey | None) -> ApiKey:
    """The stored key if the secret is its own; constant time in the secret. Raises NotAuthenticated."""
    expected = stored.secret_sha256 if stored is not None else _NO_KEY
    matches = hmac.compare_digest(hash_secret(presented.secret), expected)
    if stored is None or not matches or stored.revoked_at is not None:
        raise NotAuthenticated
    return stored


def hash_secret(secret: str) -> str:
    """Hex SHA-256. The secret has 256 random bits, so a slow hash would protect nothing more."""
    return hashlib.sha256(secret.encode()).hexdigest()


def format_key(key_id: str, secret: str) -> str:
    """The key as its owner sees it, once."""
    return f"up_{key_id}_{secret}"
