"""Secrets that MCP servers of environments are given, and why one is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from scenario_runner.domain.environments import EnvironmentBroken
from scenario_runner.domain.runs import NotFound, Refused

KEY_SETTING = "SCENARIO_RUNNER_SECRETS_KEY_FILE"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """Without its value. set_by: a principal."""

    name: str
    set_by: str
    set_at: datetime


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
