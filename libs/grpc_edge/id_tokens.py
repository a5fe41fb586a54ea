"""Tokens of people, signed by an OpenID Connect issuer (JWT), as one server checks them.

The issuer's public keys are read from its JWKS URL every minute, and when a token names a key that is not
among them. A token is checked without I/O: only algorithms with a public key, and the issuer, the audience
and the time of every token.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import jwt

from identities.tenants import OWN_TENANT
from service_kit.component import ALARM
from service_kit.groups import AccessSettings
from service_kit.loops import pause
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""None with a shared secret: the public key would be one that everybody knows."""
POLL_S: Final = 60.0
SOONEST_S: Final = 5.0
"""Between two readings that unknown keys ask for."""
TRUSTED_S: Final = 3600.0
"""How long the last reading counts while the issuer does not answer."""
LEEWAY_S: Final = 5.0
"""What clocks of issuer and server may differ by."""
_FETCH_S: Final = 5.0
_MAX_BYTES: Final = 256 * 1024
_MAX_NAME_CHARS: Final = 64
_DIGEST_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a token is of. ends_at: seconds of Unix time."""

    name: str
    role: Role.ValueType
    ends_at: float


FetchKeys = Callable[[], Awaitable[Mapping[str, Any]]]
"""The issuer's JWKS document. Raises Unavailable."""


class IdTokens:
    """Of one issuer, in one process. Raises nothing but Unavailable."""

    def __init__(
        self,
        settings: AccessSettings,
        fetch: FetchKeys,
        *,
        now: Callable[[], float] = time.time,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """now: for expiry. seconds: that only grow, for the age of the keys."""
        self._settings = settings
        self._fetch = fetch
        self._now = now
        self._seconds = seconds
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at: float | None = None
        self._trouble = "not asked yet"
        self._look = asyncio.Event()

    def find(self, text: str) -> Person | None:
        """Whose token it is; None: it is not valid here, or its owner has no role. Raises Unavailable while
        the issuer's keys are not known."""
        self._require_fresh()
        try:
            head = jwt.get_unverified_header(text)
            key = self._keys.get(str(head.get("kid", "")))
            if key is None:
                self._look.set()
                return None
            if head.get("alg") not in ALGORITHMS or key.algorithm_name != head["alg"]:
                return None
            return self._person(self._claims(text, key))
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            log.info("token_refused", extra={"why": type(error).__name__})
            return None

    def stands(self, ends_at: float) -> bool:
        """Whether a token that was found before is still valid."""
        return self._now() < ends_at

    def ready(self) -> str | None:
        """An alarm while tokens are refused because the issuer does not answer."""
        try:
            self._require_fresh()
        except Unavailable as error:
            return f"{ALARM}tokens of people are refused: {error}"
        return None

    async def refresh(self) -> None:
        """Read the keys once. While the issuer does not answer, those that are known age."""
        asked_at = self._seconds()
        try:
            found = _keys_of(await self._fetch())
        except Unavailable as error:
            if str(error) != self._trouble:
                log.warning("issuer_unread", extra={"why": str(error)})
            self._trouble = str(error)
            return
        self._keys, self._read_at, self._trouble = found, asked_at, ""

    async def run(self, stop: asyncio.Event) -> None:
        """Read them every minute, and for an unknown key, until stopped."""
        while not stop.is_set():
            await self.refresh()
            await pause(stop, SOONEST_S)
            await pause(stop, POLL_S - SOONEST_S, self._look)

    def _claims(self, text: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        claims: Mapping[str, Any] = jwt.decode(
            text,
            key.key,
            algorithms=[key.algorithm_name],
            audience=self._settings.oidc_audience,
            issuer=self._settings.oidc_issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iat", "sub", "iss", "aud"]},
        )
        return claims

    def _person(self, claims: Mapping[str, Any]) -> Person | None:
        role = self._role(claims) if self._is_of_our_tenant(claims) else None
        name = claims.get(self._settings.oidc_name_claim) or claims["sub"]
        if role is None or not isinstance(name, str) or not name.isprintable():
            return None
        return Person(f"oidc:{_shortened(name)}", role, float(claims["exp"]) + LEEWAY_S)

    def _is_of_our_tenant(self, claims: Mapping[str, Any]) -> bool:
        wanted = self._settings.oidc_tenant_claim
        return not wanted or OWN_TENANT in _values(claims, wanted)

    def _role(self, claims: Mapping[str, Any]) -> Role.ValueType | None:
        """The highest one that the claim's values stand for."""
        held = _values(claims, self._settings.oidc_role_claim)
        if held & set(self._settings.oidc_operator_roles):
            return Role.ROLE_OPERATOR
        return Role.ROLE_USER if held & set(self._settings.oidc_user_roles) else None

    def _require_fresh(self) -> None:
        if self._read_at is None or self._seconds() - self._read_at > TRUSTED_S:
            raise Unavailable(f"the keys of issuer {self._settings.oidc_issuer}: {self._trouble}")


def _shortened(name: str) -> str:
    """Two people have two names, however long they begin alike: what is of one is not of the other."""
    if len(name) <= _MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _MAX_NAME_CHARS - 1 - _DIGEST_CHARS]}-{digest}"


def _texts(found: Any) -> Iterable[str]:
    return (one for one in found if isinstance(one, str)) if isinstance(found, list | tuple) else ()


def _values(claims: Mapping[str, Any], path: str) -> set[str]:
    """Of a claim that is a text or a list of texts; dots lead into objects."""
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return {found} if isinstance(found, str) else set(_texts(found))


def _keys_of(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """By their ids, those that sign with an algorithm of ours. Raises Unavailable for no document."""
    rows = document.get("keys")
    if not isinstance(rows, list):
        raise Unavailable("the JWKS document has no list of keys")
    found = dict[str, jwt.PyJWK]()
    for row in rows:
        try:
            key = jwt.PyJWK.from_dict(row)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue  # of a kind that this library does not know
        if key.key_id and key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig"):
            found[str(key.key_id)] = key
    return found


def fetch_from(url: str) -> FetchKeys:
    """Over HTTP, without redirects."""

    async def fetch() -> Mapping[str, Any]:
        timeout = aiohttp.ClientTimeout(total=_FETCH_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.get(url, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise Unavailable(f"{url} answers {answer.status}")
                body = bytearray()
                while len(body) <= _MAX_BYTES and (piece := await answer.content.readany()):
                    body += piece
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{url} does not answer: {error or type(error).__name__}") from error
        return _document(url, bytes(body))

    return fetch


def _document(url: str, body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body) if len(body) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"{url} answers no JWKS document of at most {_MAX_BYTES} bytes")
    return found
