"""Secrets of MCP servers: operators set, list and remove them; the fleet reads them for a server."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Protocol

from grpc_edge.access import Caller
from scenario_runner.domain.environments import EnvironmentBroken, EnvironmentDescription
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.secrets import SecretsMissing, StoredSecret
from service_kit.errors import InvalidRequest
from upcycle.environment.server_secrets import SecretRefused, checked_name, checked_value
from upcycle.errors import UpcycleError


class SecretStore(Protocol):
    """Where they are kept."""

    async def put(self, secret: StoredSecret, value: str) -> None:
        """A new one, or another value."""
        ...

    async def all(self) -> list[StoredSecret]:
        """By name, without values."""
        ...

    async def remove(self, name: str, *, by: str) -> None:
        """Raises UnknownSecret."""
        ...

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Those of the names that are set."""
        ...


class ManageSecrets:
    """What operators do with them."""

    def __init__(self, store: SecretStore, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def put(self, name: str, value: str, caller: Caller) -> StoredSecret:
        """Raises InvalidRequest, which does not repeat the value, and NoSecretsKey."""
        try:
            secret = StoredSecret(checked_name(name), caller.principal, self._now())
            given = checked_value(name, value)
        except SecretRefused as error:
            raise InvalidRequest(str(error)) from error
        await self._store.put(secret, given)
        return secret

    async def listed(self) -> list[StoredSecret]:
        """By name."""
        return await self._store.all()

    async def remove(self, name: str, caller: Caller) -> None:
        """Raises UnknownSecret."""
        await self._store.remove(name, by=caller.principal)


class SecretValues:
    """What MCP servers of an environment name, for the process that starts them."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store

    async def __call__(self, environment: str, named: Mapping[str, str]) -> dict[str, str]:
        """named: of each secret, the server. Raises EnvironmentBroken."""
        try:
            values = await self._store.values(named)
        except (UpcycleError, Refused) as error:
            raise EnvironmentBroken(f"secrets of environment {environment!r}: {error}") from error
        if missing := {name: server for name, server in named.items() if name not in values}:
            raise SecretsMissing(environment, missing)
        return values


class CheckSecrets:
    """Refuse a run over an environment whose secrets are not set."""

    def __init__(self, values: SecretValues) -> None:
        self._values = values

    async def __call__(self, environment: EnvironmentDescription) -> None:
        """Raises EnvironmentBroken."""
        if environment.secrets:
            await self._values(environment.name, environment.secrets)
