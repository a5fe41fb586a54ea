"""`upcycle-provision`: applies the topology once, or stays and keeps a queue for each model."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from pydantic_settings import BaseSettings

from event_bus.errors import ProvisionRefused
from event_bus.provision import provision
from event_bus.provision_watch import remove, watch
from event_bus.settings import ProvisionSettings
from service_kit.groups import BusSettings
from service_kit.settings import EXIT_SETTINGS, SettingsError, load_settings
from upcycle.errors import Unavailable

_MAX_COPIES: Final = 5

S = TypeVar("S", bound=BaseSettings)
T = TypeVar("T")


def main() -> None:
    """`upcycle-provision`: see its --help."""
    match sys.argv[1:]:
        case []:
            _once(1)
        case ["--replicas", number] if (
            number.isascii() and number.isdigit() and 1 <= int(number) <= _MAX_COPIES
        ):
            _once(int(number))
        case ["--watch", *rest]:
            watch(rest)
        case ["--remove-model", model]:
            _remove(model)
        case ["--help"]:
            sys.stdout.write(_HELP)
        case wrong:
            sys.exit(
                f"upcycle-provision: unknown arguments {wrong}; it takes --replicas N (1 to {_MAX_COPIES}), "
                "--watch, --remove-model MODEL or --help"
            )


def _once(replicas: int) -> None:
    settings = _settings(BusSettings)
    done = _answered(lambda: provision(settings, replicas=replicas))
    _print({"created": done.created, "updated": done.updated, "unchanged": done.unchanged})


def _remove(model: str) -> None:
    settings = _settings(ProvisionSettings)
    _print({"model": model, "commands_deleted": _answered(lambda: remove(settings, model))})


def _settings(cls: type[S]) -> S:
    try:
        return load_settings(cls, program="upcycle-provision")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_SETTINGS)


def _answered(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except (ProvisionRefused, Unavailable) as error:
        sys.exit(f"upcycle-provision: {error}")


def _print(report: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")


_HELP: Final = """upcycle-provision: create or update the streams and durables that Upcycle runs on.

usage: upcycle-provision [--replicas N]
       upcycle-provision --watch [--help]
       upcycle-provision --remove-model MODEL

  --replicas N           copies of each stream in a NATS cluster (default 1)
  --watch                stay: repair streams and durables, and keep a queue for each model of the registry
                         (its settings: upcycle-provision --watch --help)
  --remove-model MODEL   delete the queues of a model that the registry no longer has, with their commands

settings (environment):
  UPCYCLE_BUS_URL        NATS address (default nats://127.0.0.1:4222)
  UPCYCLE_BUS_NKEY       file with the key of provision (upcycle bus keys), instead of user and password
  UPCYCLE_BUS_USER       user name, when the server asks for one
  UPCYCLE_BUS_PASSWORD   password of the user
  UPCYCLE_PEERS_REGISTRY host:port of checkpoint_registry, for --watch and --remove-model
  UPCYCLE_BUS_EPISODES_KEPT   episodes that the facts have room for (default 1200000)

Safe to run again at any time. Prints {"created": [...], "updated": [...], "unchanged": [...]}.
Exit status: 0 applied, 1 refused or no NATS, 2 wrong settings.
"""
