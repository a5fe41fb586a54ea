"""docker-compose.yml as data: for each of its services what a pod needs to know of it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SHARED: Final[dict[str, str]] = COMPOSE["x-service"]["environment"]
"""Variables that all of our services have, each with the same value."""
SECRETS: Final = tuple(
    line.partition("=")[0]
    for line in (ROOT / "deploy" / "secrets.example.env").read_text().splitlines()
    if line[:1].isupper()
)
"""Variables of the file of secrets, which a service has where its `environment` does not say otherwise."""
_SECRET_NAME: Final = re.compile(r"(_KEYS?|PASSWORD|ROOT_USER)$")
_INNER: Final = re.compile(r"\$\{(\w+)(?::[-?][^{}]*)?\}")
_SERVERS: Final = ("postgres", "seaweedfs")
"""They do not start without their secrets, which Compose itself checks only in part."""
_UNITS: Final = {"g": "Gi", "m": "Mi"}


@dataclass(frozen=True, slots=True)
class Variables:
    """Of one container. secrets: variable -> the secret's name in the file of secrets, and whether it must be
    there; settings may name a secret as $(NAME)."""

    settings: dict[str, str]
    secrets: dict[str, tuple[str, bool]]


def default(text: object) -> str:
    """With every ${NAME:-value} replaced by its value, and a ${NAME} that must be given by $(NAME)."""
    said = str(text)
    while found := re.search(r"\$\{(\w+):-((?:[^{}]|\$\{[^{}]*\})*)\}", said):
        said = said.replace(found[0], found[2])
    return _INNER.sub(r"$(\1)", said)


def variables(name: str) -> Variables:
    """What the container of a service has, beside what all share."""
    service = COMPOSE["services"][name]
    given: dict[str, Any] = service.get("environment") or {}
    settings, secrets = {}, {}
    if "env_file" in service:
        secrets = {one: (one, True) for one in SECRETS if one not in given}
    for variable, value in given.items():
        said = default(value)
        if _SECRET_NAME.search(variable) and (named := _INNER.search(str(value))):
            must = variable in SECRETS and ":-" not in str(value)
            secrets[variable] = (named[1], must or name in _SERVERS)
        elif (said or SHARED.get(variable)) and (variable not in SHARED or SHARED[variable] != value):
            settings[variable] = said
            secrets |= {one: (one, True) for one in re.findall(r"\$\((\w+)\)", said) if one in SECRETS}
    return Variables(settings, secrets)


def shared() -> dict[str, str]:
    """The settings that are equal in all of our services."""
    return {name: said for name, value in SHARED.items() if (said := default(value))}


def memory(name: str) -> str:
    """The most that its container may take, as Kubernetes writes it."""
    said = default(COMPOSE["services"][name]["mem_limit"])
    return f"{said[:-1]}{_UNITS[said[-1]]}"


def image(name: str) -> str:
    """As the overlay's `images` finds it."""
    return default(COMPOSE["services"][name]["image"])


def command(name: str) -> dict[str, list[str]]:
    """`command` and `args` of the container."""
    service = COMPOSE["services"][name]
    if "entrypoint" in service:
        return {"command": service["entrypoint"], "args": service.get("command", [])}
    return {"args": service["command"]} if "command" in service else {}


def files(name: str) -> dict[str, str]:
    """Files of this checkout that it mounts: path in the container -> path below deploy."""
    mounts = [volume.split(":") for volume in COMPOSE["services"][name].get("volumes", [])]
    return {where: source for source, where, *_ in mounts if source.startswith("./deploy/")}


def kept(name: str) -> dict[str, str]:
    """Volumes that it keeps files in: name -> path in the container. Keys are none: they are secrets here."""
    mounts = [volume.split(":") for volume in COMPOSE["services"][name].get("volumes", [])]
    named = {source: where for source, where, *_ in mounts if source in COMPOSE["volumes"]}
    return {source: where for source, where in named.items() if not source.startswith(("keys-", "signing"))}


def in_memory(name: str) -> list[str]:
    """Folders that live as long as the container."""
    return [one.split(":")[0] for one in COMPOSE["services"][name].get("tmpfs", [])]
