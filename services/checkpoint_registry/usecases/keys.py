"""Keys made, listed and revoked by operators; what is valid told to the servers."""

import secrets
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Final

from checkpoint_registry.adapters.sql_keys import SqlKeyStore
from checkpoint_registry.domain.errors import KeysNeedAccess
from checkpoint_registry.domain.keys import ApiKey, KeyOrder, key_text
from checkpoint_registry.ports import Clock
from grpc_edge.access import UNAUTHENTICATED, Caller
from grpc_edge.issued_keys import ValidKeys, id_of, sha256_of

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_CHARS: Final = 12
_SECRET_BYTES: Final = 32


class ManageKeys:
    """Every change is written before it is answered, so a restart forgets none."""

    def __init__(self, store: SqlKeyStore, *, now: Clock) -> None:
        self._store = store
        self._now = now
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change, so that this process need not wait for its turn."""

    async def create(self, order: KeyOrder, caller: Caller) -> tuple[ApiKey, str]:
        """The key, and its text, which is kept nowhere. Raises InvalidRequest, TooManyKeys,
        KeysNeedAccess."""
        _require_known(caller)
        order.validate()
        now = self._now()
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARS))
        text = key_text(key_id, secrets.token_urlsafe(_SECRET_BYTES))
        until = None if order.expires_in_s is None else now + timedelta(seconds=order.expires_in_s)
        key = ApiKey(
            key_id, sha256_of(text), order.name, order.role, order.granted, caller.principal, now, until
        )
        await self._store.add(key)
        self.on_change()
        return key, text

    async def listed(self, *, include_ended: bool) -> list[ApiKey]:
        """Oldest first."""
        now, found = self._now(), await self._store.all()
        return [key for key in found if include_ended or key.is_valid(now)]

    async def revoke(self, key_id: str, caller: Caller) -> ApiKey:
        """The key as it is then; one that was revoked before stays so. key_id: or the whole key, as somebody
        found it. Raises UnknownKey, KeysNeedAccess."""
        _require_known(caller)
        revoked = await self._store.revoke(id_of(key_id), at=self._now(), by=caller.principal)
        self.on_change()
        return revoked

    async def valid_keys(self, known: str, used: Collection[str]) -> ValidKeys | None:
        """None: nothing changed since the digest `known`. used: ids of keys that calls brought."""
        return await self._store.valid_keys(known, used, self._now())


def _require_known(caller: Caller) -> None:
    if caller is UNAUTHENTICATED:
        raise KeysNeedAccess
