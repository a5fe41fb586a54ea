"""`upcycle set`."""

import os
from collections.abc import Coroutine, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.given_values import ValueRefused, given, require_one
from upcycle.cli.output import JsonFlag, human, print_json

if TYPE_CHECKING:
    from upcycle.user_settings.catalogue import UserSetting


def set_setting(
    name: str | None = None,
    value: Annotated[tuple[str, ...], Parameter(show=False, allow_leading_hyphen=True)] = (),
    *,
    from_file: Path | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    remove: str | None = None,
    in_profile: Annotated[bool, Parameter(name="--profile", negative="")] = False,
    environment: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    rotate: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonFlag = False,
) -> "int | Coroutine[Any, Any, int]":
    """Store a key or another setting of yours in your profile, a file that is open to you alone. `upcycle set
    secret NAME` stores a secret of MCP servers on the platform, which an operator may.

    The value is asked for (a key is not shown), or read from a file or from standard input; never from the
    command line, where the shell's history and the list of processes show it.

    :param name: such as OPENAI_API_KEY, UPCYCLE_API_KEY (the platform's gateway), platform.host; or `secret`,
        and then the name that `${secret:NAME}` of an MCP server has.
    :param from_file: file that holds the value in one line; - is standard input.
    :param list_: what the profile holds; keys as set. Of secrets their names.
    :param remove: take this one out of the profile; a secret: off the platform.
    :param in_profile: with `secret`: in your profile, for episodes that you play here without the platform.
    :param environment: with `secret`: an environment whose MCP servers may name it; several times for
        several, '*' for each. Without it those that may already, and of a new secret each.
    :param rotate: with `secret`: encrypt all that the platform keeps with the key that it has now; older keys
        are needed no more after that.
    :param as_json: with --list, one JSON line for each.
    """
    if name == "secret":
        from upcycle.cli.set_secret import SecretOptions, set_secret

        options = SecretOptions(from_file, list_, remove, in_profile, as_json, environment, rotate)
        return set_secret(value, options)
    _without({"--profile": in_profile, "--environment": bool(environment), "--rotate": rotate})
    _check(name, value, {"--list": list_, "--remove": remove is not None}, from_file)
    if list_:
        return _list(as_json)
    return _store(name or "", from_file) if remove is None else _remove(remove)


def _remove(name: str) -> int:
    from upcycle.user_settings import profile

    path = profile.remove(named(name), os.environ)
    print(f"{name} is no longer in {path}")
    return Exit.OK


def _store(name: str, from_file: Path | None) -> int:
    from upcycle.user_settings import profile

    setting = named(name)
    found = profile.one_value(setting, given(setting, from_file))
    path = profile.store(setting, _checked(setting, found), os.environ)
    print(f"{name} is stored in {path}")
    if setting.variable in os.environ:
        human().print(f"the environment has {setting.variable}, and wins over it", markup=False)
    return Exit.OK


def _without(of_secrets: dict[str, bool]) -> None:
    """Flags of secrets, by name, and whether they were given. Raises ValueRefused for one that was."""
    for flag, is_given in of_secrets.items():
        if is_given:
            raise ValueRefused(f"{flag} belongs to `upcycle set secret`", "leave it out")


def _check(
    name: str | None, value: tuple[str, ...], others: Mapping[str, bool], from_file: Path | None
) -> None:
    """Raises ValueRefused, without repeating a value."""
    given, equals, _ = (name or "").partition("=")
    if value or equals:
        from upcycle.user_settings.catalogue import BY_KEY, BY_VARIABLE

        near = get_close_matches(given, [*BY_VARIABLE, *BY_KEY], n=1)
        raise ValueRefused(
            f"a value of {given} on the command line is seen in the shell's history and by other users",
            f"type `upcycle set {near[0] if near else given}`, which asks for it; replace a key so typed",
        )
    require_one({"NAME": bool(name), **others}, "NAME, --list, or --remove NAME")
    if from_file and not name:
        raise ValueRefused("--from-file is given without NAME", "give both")


def named(name: str) -> "UserSetting":
    """A setting by its variable or its key in a file. Raises SettingsInvalid."""
    from upcycle.user_settings.catalogue import BY_KEY, BY_VARIABLE
    from upcycle.user_settings.files import SettingsInvalid

    found = BY_VARIABLE.get(name) or BY_KEY.get(name)
    if found is None:
        near = get_close_matches(name, [*BY_VARIABLE, *BY_KEY], n=1)
        hint = f"did you mean {near[0]}?" if near else "`upcycle config show --sources` lists them"
        raise SettingsInvalid(f"{name!r} is no setting of the profile", hint)
    return found


def _checked(setting: "UserSetting", value: str) -> str:
    from upcycle.user_settings.files import checked

    return checked(setting, value, setting.variable, Path.cwd())


def _list(as_json: bool) -> int:
    from upcycle.cli.report_text import one_line, table
    from upcycle.user_settings.catalogue import BY_KEY
    from upcycle.user_settings.files import profile_path, read_profile

    found = read_profile(os.environ)
    held = found.values if found is not None else {}
    rows = [(BY_KEY[key], one) for key, one in held.items()]
    shown = [(setting, "set" if setting.hides(one.value) else one.value) for setting, one in rows]
    if as_json:
        for setting, text in shown:
            print_json("profile_setting", {"key": setting.key, "variable": setting.variable, "shown": text})
        return Exit.OK
    if not shown:
        human().print(f"nothing is stored in {profile_path(os.environ)}", markup=False, soft_wrap=True)
        return Exit.OK
    head = ("name", "setting", "value")
    for line in table([head, *((setting.variable, setting.key, one_line(text)) for setting, text in shown)]):
        print(line)
    return Exit.OK
