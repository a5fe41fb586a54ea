"""The gateway's database, with the bootstrap keys in it."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.errors import NotAuthenticated
from model_gateway.domain.keys import SCOPES, ApiKey, format_key, hash_secret, parse_key
from model_gateway.ports import Clock
from sql_store import MigratedDatabase

SERVICE = "model_gateway"


class BadBootstrapKey(ValueError):
    """A configured key does not have the form of one."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"{source} does not hold a key of the form up_<8-32 of a-z0-9>_<16 or more characters>"
        )


class GatewayDatabase(MigratedDatabase):
    """The gateway's tables; starting it also puts the configured keys in place."""

    def __init__(
        self,
        url: str | SecretStr,
        *,
        bootstrap_key: str | None = None,
        bootstrap_key_file: Path | None = None,
        now: Clock,
    ) -> None:
        super().__init__(url, SERVICE)
        self._bootstrap_key = bootstrap_key
        self._bootstrap_key_file = bootstrap_key_file
        self._now = now

    async def start(self) -> None:
        """Open, migrate, put keys. Raises BadBootstrapKey, MigrationFailed, Unavailable, StoreFull."""
        await super().start()
        keys = SqlKeyStore(self)
        for source, text in await asyncio.to_thread(self._configured):
            key = _key(source, text, self._now)
            known = await keys.find(key.key_id)
            await keys.put(replace(key, limits=known.limits) if known is not None else key)

    def _configured(self) -> Sequence[tuple[str, str]]:
        found = []
        if self._bootstrap_key:
            found.append(("MODEL_GATEWAY_BOOTSTRAP_KEY", self._bootstrap_key))
        if self._bootstrap_key_file is not None:
            found.append((str(self._bootstrap_key_file), _read_or_make(self._bootstrap_key_file)))
        return found


def _read_or_make(path: Path) -> str:
    """The key in the file; a fresh one, readable by its owner only, when there is no file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = format_key(secrets.token_hex(6), secrets.token_urlsafe(32))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(fresh + "\n")
    return path.read_text().strip()


def _key(source: str, text: str, now: Clock) -> ApiKey:
    try:
        presented = parse_key(text.strip())
    except NotAuthenticated as error:
        raise BadBootstrapKey(source) from error
    digest = hash_secret(presented.secret)
    return ApiKey(presented.key_id, digest, "bootstrap", frozenset(SCOPES), frozenset(), now())
