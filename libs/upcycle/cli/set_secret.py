"""`upcycle set secret …`: secrets of MCP servers, on the platform or in the user's profile."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.cli.exits import Exit
from upcycle.cli.given_values import ValueRefused, given, require_one
from upcycle.cli.models import print_table
from upcycle.cli.output import human, print_json
from upcycle.environment.server_secrets import checked_name, checked_value
from upcycle.platform import Platform
from upcycle.user_settings.catalogue import SECRETS, UserSetting
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.secrets.v1.service_pb2 import Secret

_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SecretOptions:
    """As the command has them."""

    from_file: Path | None
    list_: bool
    remove: str | None
    in_profile: bool
    as_json: bool
    environments: tuple[str, ...] = ()
    rotate: bool = False


async def set_secret(names: Sequence[str], options: SecretOptions) -> int:
    """Raises ValueRefused, SecretRefused, what the profile or the platform refuses."""
    _check(names, options)
    if options.rotate:
        return await _rotate(options)
    if options.list_:
        return _list_profile(options) if options.in_profile else await _list(options)
    if options.remove is not None:
        return await _remove(checked_name(options.remove), options)
    name = checked_name(names[0])
    value = checked_value(name, given(_setting(name), options.from_file))
    if options.in_profile:
        from upcycle.user_settings import profile

        print(f"secret {name} is stored in {profile.store(_setting(name), value, os.environ)}")
        return Exit.OK
    from upcycle.api.secrets.v1.service_pb2 import SetSecretRequest

    async with Platform() as platform:
        asked = SetSecretRequest(name=name, value=value, environments=options.environments)
        done = (await platform.secrets.SetSecret(asked, timeout=_TIMEOUT_S)).secret
    whose = f" of {_allowed(done)}" if done.environments else ""
    print(f"secret {name} is set on the platform; MCP servers{whose} that start from now on have it")
    return Exit.OK


def _check(names: Sequence[str], options: SecretOptions) -> None:
    """Raises ValueRefused, without repeating a value."""
    name, equals, _ = (names[0] if names else "").partition("=")
    if len(names) > 1 or equals:
        raise ValueRefused(
            f"a value of {name} on the command line is seen in the shell's history and by other users",
            f"type `upcycle set secret {name}`, which asks for it; replace a secret so typed",
        )
    asked = {"NAME": bool(names), "--list": options.list_, "--remove": options.remove is not None}
    require_one({**asked, "--rotate": options.rotate}, "NAME, --list, --remove NAME, or --rotate")
    if options.rotate and options.in_profile:
        raise ValueRefused(
            "--rotate is about the platform's key, and a profile has none", "leave one of them out"
        )
    if options.environments and (options.in_profile or not names):
        raise ValueRefused(
            "--environment says which environments of the platform may name a secret that is set there",
            "give it with `upcycle set secret NAME`, without --profile",
        )


async def _list(options: SecretOptions) -> int:
    from upcycle.api.secrets.v1.service_pb2 import ListSecretsRequest

    async with Platform() as platform:
        found = (await platform.secrets.ListSecrets(ListSecretsRequest(), timeout=_TIMEOUT_S)).secrets
    if options.as_json:
        for secret in found:
            print_json("secret", secret)
    elif found:
        print_table(("name", "environments", "set by", "at"), map(_row, found))
    else:
        human().print("no secret is set on the platform")
    return Exit.OK


def _list_profile(options: SecretOptions) -> int:
    from upcycle.user_settings.files import profile_path, read_profile

    found = read_profile(os.environ)
    names = [] if found is None else sorted(found.secrets)
    for name in names:
        if options.as_json:
            print_json("secret", {"name": name})
        else:
            print(name)
    if not names and not options.as_json:
        human().print(f"no secret is in {profile_path(os.environ)}", markup=False, soft_wrap=True)
    return Exit.OK


async def _remove(name: str, options: SecretOptions) -> int:
    if options.in_profile:
        from upcycle.user_settings import profile

        print(f"secret {name} is no longer in {profile.remove(_setting(name), os.environ)}")
        return Exit.OK
    from upcycle.api.secrets.v1.service_pb2 import RemoveSecretRequest

    async with Platform() as platform:
        await platform.secrets.RemoveSecret(RemoveSecretRequest(name=name), timeout=_TIMEOUT_S)
    print(f"secret {name} is no longer on the platform; servers that name it start no more")
    return Exit.OK


async def _rotate(options: SecretOptions) -> int:
    from upcycle.api.secrets.v1.service_pb2 import RotateSecretsRequest

    async with Platform() as platform:
        done = await platform.secrets.RotateSecrets(RotateSecretsRequest(), timeout=_TIMEOUT_S)
    if options.as_json:
        print_json("secrets_rotated", done)
        return Exit.OK
    print(
        f"{done.num_rotated} of {amount(done.num_secrets, 'secret')} encrypted anew: all with key "
        f"{done.key_id}, older keys are needed no more"
    )
    return Exit.OK


def _setting(name: str) -> UserSetting:
    return UserSetting(f"{SECRETS}.{name}", name, "", only_profile=True)


def _row(secret: "Secret") -> tuple[str, ...]:
    at = f"{secret.set_at.ToDatetime():%Y-%m-%d %H:%M} UTC"
    return (secret.name, _allowed(secret) or "each", secret.set_by, at)


def _allowed(secret: "Secret") -> str:
    return ", ".join(secret.environments)
