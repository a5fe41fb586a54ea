"""Secrets that MCP servers of environments are given, and why one is not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scenario_runner.domain.environments import EnvironmentBroken
from scenario_runner.domain.runs import NotFound, Refused

KEY_SETTING = "SCENARIO_RUNNER_SECRETS_KEY_FILE"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """Without its value. set_by: a principal. environments: which may name it; none: each."""

    name: str
    set_by: str
    set_at: datetime
    environments: tuple[str, ...] = ()

    def is_for(self, environment: str) -> bool:
        """Whether its MCP servers may name it."""
        return not self.environments or environment in self.environments


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A secret with its value, which no text shows."""

    stored: StoredSecret
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rotation:
    """num_rotated: secrets that another key had encrypted. num_secrets: all. key_id: of the key now."""

    num_rotated: int
    num_secrets: int
    key_id: str


class UnknownSecret(NotFound):
    """No secret of that name is set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no secret {name!r} is set; `upcycle set secret --list` shows those that are")


class NoSecretsKey(Refused):
    """This platform has no key to encrypt secrets with."""

    def __init__(self) -> None:
        super().__init__(
            f"this platform keeps no secrets: {KEY_SETTING} names no file with its key (docs/do/secrets.md)"
        )


class SecretsMissing(EnvironmentBroken):
    """MCP servers of an environment name secrets that are not set."""

    def __init__(self, environment: str, named: Mapping[str, str]) -> None:
        """named: of each secret that is missing, the server."""
        which = ", ".join(f"{name!r} (MCP server {server!r})" for name, server in named.items())
        plural = "s" if len(named) > 1 else ""
        super().__init__(
            f"environment {environment!r} names secret{plural} {which}, which this platform does not have: "
            f"its operator sets it, `upcycle set secret {next(iter(named))}`"
        )


class SecretsOfOthers(EnvironmentBroken):
    """MCP servers of an environment name secrets that the operator set for other environments."""

    def __init__(self, environment: str, named: Mapping[str, str]) -> None:
        """named: of each of these secrets, the server."""
        which = ", ".join(f"{name!r} (MCP server {server!r})" for name, server in named.items())
        plural, verb = ("s", "are") if len(named) > 1 else ("", "is")
        super().__init__(
            f"environment {environment!r} names secret{plural} {which}, which {verb} set for other "
            "environments alone: the operator sets it for this one too, "
            f"`upcycle set secret {next(iter(named))} --environment …`, with each that may name it"
        )
