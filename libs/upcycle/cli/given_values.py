"""A value of `upcycle set`: typed, or read from a file, never from the command line."""

import getpass
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from upcycle.user_settings.catalogue import UserSetting


class ValueRefused(UpcycleError, ValueError):
    """A value was given on the command line, or several things were asked for at once."""

    kind = "value_refused"


def given(setting: "UserSetting", from_file: Path | None) -> str:
    """What a person types, or a file holds. Raises SettingsInvalid for a file that cannot be read."""
    from upcycle.user_settings.files import SettingsInvalid

    if from_file is not None and str(from_file) != "-":
        try:
            return from_file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise SettingsInvalid(f"{from_file} cannot be read: {why}") from error
    if from_file is not None or not sys.stdin.isatty():
        try:
            return sys.stdin.read()
        except ValueError as error:
            raise SettingsInvalid(f"{setting.variable}: standard input is no text in UTF-8") from error
    try:
        return getpass.getpass(f"{setting.variable}: ") if setting.is_secret else input(f"{setting.key}: ")
    except EOFError:
        return ""


def require_one(asked: Mapping[str, bool], usage: str) -> None:
    """Of what may be asked for, by what a person calls it. Raises ValueRefused for nothing, and for two."""
    named = [name for name, is_given in asked.items() if is_given]
    if not named:
        raise ValueRefused("nothing is named to set", f"give {usage}")
    if len(named) > 1:
        raise ValueRefused(f"{' and '.join(named)} ask for different things", "give one of them")
