"""Secrets of MCP servers: operators set, list and remove them; the fleet reads them for a server."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from grpc_edge.access import Caller
from scenario_runner.domain.environments import EnvironmentBroken, EnvironmentDescription
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.secrets import (
    Rotation,
    SecretsMissing,
    SecretsOfOthers,
    SecretValue,
    StoredSecret,
)
from service_kit.errors import InvalidRequest
from upcycle.environment.server_secrets import SecretRefused, checked_name, checked_value
from upcycle.errors import TasksetInvalid, UpcycleError
from upcycle.task_rows import check_name

EACH: Final = "*"
"""In place of environments: each may name the secret."""
MAX_ENVIRONMENTS: Final = 100


class SecretStore(Protocol):
    """Where they are kept."""

    async def put(
        self, secret: StoredSecret, value: str, *, keeps_environments: bool = False
    ) -> StoredSecret:
        """A new one, or another value; as it is stored."""
        ...

    async def all(self) -> list[StoredSecret]:
        """By name, without values."""
        ...

    async def remove(self, name: str, *, by: str) -> None:
        """Raises UnknownSecret."""
        ...

    async def rotate(self, *, by: str) -> Rotation:
        """Encrypt all with the key that counts now. Raises NoSecretsKey, and UpcycleError where one was
        encrypted with a key that is not there: then nothing is changed."""
        ...

    async def values(self, names: Collection[str]) -> dict[str, SecretValue]:
        """Those of the names that are set."""
        ...


class ManageSecrets:
    """What operators do with them."""

    def __init__(self, store: SecretStore, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def put(self, name: str, value: str, environments: Sequence[str], caller: Caller) -> StoredSecret:
        """environments: which may name it; none: as before, and of a new secret each. Raises InvalidRequest,
        which does not repeat the value, and NoSecretsKey."""
        try:
            allowed = _checked(environments)
            secret = StoredSecret(checked_name(name), caller.principal, self._now(), allowed)
            given = checked_value(name, value)
        except (SecretRefused, TasksetInvalid) as error:
            raise InvalidRequest(str(error)) from error
        return await self._store.put(secret, given, keeps_environments=not environments)

    async def listed(self) -> list[StoredSecret]:
        """By name."""
        return await self._store.all()

    async def remove(self, name: str, caller: Caller) -> None:
        """Raises UnknownSecret."""
        await self._store.remove(name, by=caller.principal)

    async def rotate(self, caller: Caller) -> Rotation:
        """Encrypt all with the key that counts now. Raises NoSecretsKey, Refused."""
        try:
            return await self._store.rotate(by=caller.principal)
        except UpcycleError as error:
            raise Refused(f"no secret was encrypted anew: {error}") from error


class SecretValues:
    """What MCP servers of an environment name, for the process that starts them."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store

    async def __call__(self, environment: str, named: Mapping[str, str]) -> dict[str, str]:
        """named: of each secret, the server. Raises EnvironmentBroken."""
        try:
            found = await self._store.values(named)
        except (UpcycleError, Refused) as error:
            raise EnvironmentBroken(f"secrets of environment {environment!r}: {error}") from error
        if missing := {name: server for name, server in named.items() if name not in found}:
            raise SecretsMissing(environment, missing)
        if kept := {name: named[name] for name, one in found.items() if not one.stored.is_for(environment)}:
            raise SecretsOfOthers(environment, kept)
        return {name: one.value for name, one in found.items()}


class CheckSecrets:
    """Refuse a run over an environment whose secrets are not set."""

    def __init__(self, values: SecretValues) -> None:
        self._values = values

    async def __call__(self, environment: EnvironmentDescription) -> None:
        """Raises EnvironmentBroken."""
        if environment.secrets:
            await self._values(environment.name, environment.secrets)


def _checked(environments: Sequence[str]) -> tuple[str, ...]:
    """Sorted, once each; none for EACH. Raises InvalidRequest, TasksetInvalid."""
    if len(environments) > MAX_ENVIRONMENTS:
        raise InvalidRequest(
            f"{len(environments)} environments are named, limit {MAX_ENVIRONMENTS}; leave them out to have "
            "each name the secret"
        )
    if EACH not in environments:
        return tuple(sorted({check_name("environment", one) for one in environments}))
    if len(environments) > 1:
        raise InvalidRequest(f"environment {EACH!r} stands for each, and others are named beside it")
    return ()
