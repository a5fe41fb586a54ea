"""The object store that a command of an operator reads, and the keys that prove and sign what is there."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.errors import UpcycleError
from upcycle.platform import PlatformNotFound, running_stack

if TYPE_CHECKING:
    from service_kit.groups import S3Settings, SigningSettings
    from signed_objects import SigningKey, TrustedKeys


class SigningSettingsInvalid(UpcycleError, ValueError):
    """A variable UPCYCLE_SIGNING_* or UPCYCLE_S3_*, or a flag of these commands, cannot be used."""

    kind = "settings_invalid"


_BOTH = "set UPCYCLE_SIGNING_KEY to the operator's signing.pem and UPCYCLE_SIGNING_TRUSTED to trusted.pub"


def places(program: str) -> "tuple[S3Settings, SigningSettings, Path | None]":
    """Object store, the operator's keys, and the data folder where it is that of an `upcycle up`. program:
    the command, for messages. Raises PlatformNotFound, SigningSettingsInvalid."""
    from pydantic import SecretStr

    from local_stack.signing import operator_settings
    from service_kit.groups import S3Settings, SigningSettings
    from service_kit.settings import SettingsError, load_settings

    if any(name.startswith("UPCYCLE_S3_") for name in os.environ):
        try:
            named = load_settings(S3Settings, program=program)
            return named, load_settings(SigningSettings, program=program), None
        except SettingsError as error:
            raise SigningSettingsInvalid(str(error)) from error
    if (found := running_stack()) is None:
        raise PlatformNotFound(
            f"no object store is named, and no running platform was found from {Path.cwd()} upwards",
            "set UPCYCLE_S3_*, or go to the folder of `upcycle up` and start it",
        )
    state: dict[str, Any] = found[1]
    secrets, data_dir = json.loads(Path(state["credentials_file"]).read_text()), Path(state["data_dir"])
    s3 = S3Settings(
        endpoint=state["s3"]["endpoint"],
        bucket=state["s3"]["bucket"],
        access_key=SecretStr(secrets["s3_access_key"]),
        secret_key=SecretStr(secrets["s3_secret_key"]),
    )
    return s3, operator_settings(data_dir), data_dir


def operator_keys(
    signing: "SigningSettings", given_up: tuple[str, ...] = ()
) -> "tuple[SigningKey, TrustedKeys]":
    """The operator's key, and the trusted ones. Raises SigningSettingsInvalid, SigningKeyRefused."""
    from signed_objects import SigningKey, TrustedKeys

    if signing.key is None or signing.trusted is None:
        raise SigningSettingsInvalid("name the operator's key and the trusted ones", _BOTH)
    operator, trusted = SigningKey.read(signing.key), TrustedKeys.read(signing.trusted)
    if unknown := sorted({*given_up} - {*trusted.keys}):
        raise SigningSettingsInvalid(f"no trusted key has the id {unknown[0]!r}", f"see {signing.trusted}")
    if operator.id not in trusted.keys or operator.id in given_up:
        raise SigningSettingsInvalid(f"the key {operator.id} of {signing.key} is not trusted", _BOTH)
    return operator, trusted
