"""Keys that an operator made at run time, as one server knows them.

The registry owns them. Each server keeps a copy of what is valid, asks for changes every two seconds, and
looks keys up in it without I/O: by the SHA-256 of the whole key, so the time of an answer tells nothing. A
key that was revoked in any copy that this process had is refused for as long as the process lives.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from service_kit.clock import utc_now
from service_kit.component import ALARM
from service_kit.loops import pause
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

PREFIX: Final = "upk_"
"""Begins the text of each issued key: `upk_<id>_<secret>`."""
_DOTS_OF_A_TOKEN: Final = 2
PLATFORM: Final = "platform"
INFERENCE: Final = "inference"
POLL_S: Final = 2.0
TRUSTED_S: Final = 600.0
"""How long the last copy counts while the registry does not answer."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """One valid key, without its secret. scopes: `platform`, `inference`, `inference:MODEL`."""

    key_id: str
    name: str
    role: Role.ValueType
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ValidKeys:
    """What the registry says is valid, by the SHA-256 of the key. digest: of all of it; revoked: hashes."""

    digest: str
    keys: Mapping[str, IssuedKey] = field(default_factory=dict, repr=False)
    revoked: frozenset[str] = field(default=frozenset(), repr=False)


class KeySource(Protocol):
    """The registry, from afar or in its own process."""

    async def valid_keys(self, known: str, used: Collection[str]) -> ValidKeys | None:
        """What is valid now; None: the digest is still `known`. used: ids of keys that calls brought since.
        Raises Unavailable."""


def sha256_of(key: str) -> str:
    """Hex. A key has 256 random bits, so a slow hash would protect nothing more."""
    # What is no text, such as other bytes of a header, is no key.
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def is_token(text: str) -> bool:
    """Whether it has the form of a JWT, which no key has."""
    return text.count(".") == _DOTS_OF_A_TOKEN


def id_of(text: str) -> str:
    """Of a key, given as its id or whole."""
    return text.removeprefix(PREFIX).partition("_")[0] if text.startswith(PREFIX) else text


class IssuedKeys:
    """The copy of one process. Raises nothing but Unavailable."""

    def __init__(
        self,
        source: KeySource,
        *,
        now: Callable[[], datetime] = utc_now,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """now: for expiry. seconds: that only grow, for the age of the copy."""
        self._source = source
        self._now = now
        self._seconds = seconds
        self._keys: Mapping[str, IssuedKey] = {}
        self._by_id: Mapping[str, str] = {}
        self._digest = ""
        self._revoked: set[str] = set()
        self._used: set[str] = set()
        self._read_at: float | None = None
        self._begun_at = seconds()
        self._trouble = ""
        self._look = asyncio.Event()

    def find(self, text: str) -> IssuedKey | None:
        """Whose key it is; None: it is unknown, expired or revoked. Raises Unavailable while that is not
        known."""
        self._require_fresh()
        found = self._valid(sha256_of(text))
        if found is not None:
            self._used.add(found.key_id)
        return found

    def stands(self, key_id: str) -> bool:
        """Whether a key that was found before is still valid. Raises Unavailable."""
        self._require_fresh()
        return self._valid(self._by_id.get(key_id, "")) is not None

    def ready(self) -> str | None:
        """An alarm once keys are refused because the registry does not answer."""
        since = self._begun_at if self._read_at is None else self._read_at
        if self._seconds() - since <= TRUSTED_S:
            return None
        return f"{ALARM}issued keys are refused: {self._trouble}"

    def wake(self) -> None:
        """Ask now rather than at the next turn."""
        self._look.set()

    async def refresh(self) -> None:
        """Ask once. While the registry does not answer, the copy stays as it is and ages."""
        used, asked_at = frozenset(self._used), self._seconds()
        try:
            found = await self._source.valid_keys(self._digest, used)
        except Unavailable as error:
            if str(error) != self._trouble:
                log.warning("issued_keys_unread", extra={"why": str(error)})
            self._trouble = str(error)
            return
        self._used -= used
        self._trouble, self._read_at = "", asked_at
        if found is not None:
            self._revoked |= found.revoked
            self._keys, self._digest = found.keys, found.digest
            self._by_id = {key.key_id: sha256 for sha256, key in found.keys.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Ask every two seconds, and when woken, until stopped."""
        while not stop.is_set():
            await self.refresh()
            await pause(stop, POLL_S, self._look)

    def _valid(self, sha256: str) -> IssuedKey | None:
        found = self._keys.get(sha256)
        if found is None or sha256 in self._revoked:
            return None
        if found.expires_at is not None and found.expires_at <= self._now():
            return None
        return found

    def _require_fresh(self) -> None:
        if self._read_at is None:
            raise Unavailable(f"the registry to say which keys are valid: {self._trouble or 'not asked yet'}")
        age_s = self._seconds() - self._read_at
        if age_s > TRUSTED_S:
            raise Unavailable(
                f"the registry to say which keys are valid: it has not answered for {age_s:.0f} s, and its "
                f"last answer counts for {TRUSTED_S:.0f} s: {self._trouble}"
            )
