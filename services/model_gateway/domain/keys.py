"""API keys: `up_<id>_<secret>`. The id finds the row, the secret is only ever kept as its SHA-256."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime

from model_gateway.domain.errors import NotAllowed, NotAuthenticated

INFERENCE = "inference"
ADMIN = "admin"
SCOPES = (INFERENCE, ADMIN)

_KEY = re.compile(r"up_([a-z0-9]{8,32})_([A-Za-z0-9_-]{16,128})")
# Compared against when there is no such key, so that an unknown id costs what a wrong secret costs.
_NO_KEY = hashlib.sha256(b"nobody").hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Empty `models` allows every model."""

    key_id: str
    secret_sha256: str
    name: str
    scopes: frozenset[str]
    models: frozenset[str]
    created_at: datetime
    revoked_at: datetime | None = None

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


def bearer(authorization: str | None) -> PresentedKey:
    """The key of an Authorization header. Raises NotAuthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticated
    return parse_key(token.strip())


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
