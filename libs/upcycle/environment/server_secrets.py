"""Secrets of MCP servers. `${secret:NAME}` in a server's `env` or `headers` stands for a value that the
environment's file does not hold: only the process that starts the server, or opens its URL, is given it.
"""

import itertools
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from upcycle.errors import DefinitionError, UpcycleError

MIN_CHARS: Final = 6
"""A shorter value stands in honest texts, and could not be cut out of them."""
MAX_CHARS: Final = 4096
_MIN_PART: Final = 4
"""Characters of the rest of a value that are cut off a text which was cut before."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFERENCE: Final = re.compile(r"\$\{secret:([^}]*)\}")
_PLACES: Final = ("env", "headers")
REFERENCE_BEGINS: Final = b"${secret:"
"""In a source that names one."""

Config = Mapping[str, Mapping[str, Any]]


class SecretRefused(UpcycleError, ValueError):
    """A name or a value that no secret can have."""

    kind = "secret_refused"


class SecretMissing(UpcycleError, LookupError):
    """An MCP server names a secret that is not set."""

    kind = "secret_missing"

    def __init__(self, name: str, server: str) -> None:
        super().__init__(
            f"MCP server {server!r} names secret {name!r}, which is not set",
            f"on a platform `upcycle set secret {name}`; for episodes that you play here add --profile",
        )


def checked_name(name: str) -> str:
    """Raises SecretRefused."""
    if _NAME.fullmatch(name):
        return name
    raise SecretRefused(
        f"{name!r:.80} is no name of a secret", "a letter or _, then up to 63 of A-Z a-z 0-9 _"
    )


def checked_value(name: str, text: str) -> str:
    """One line that a header and a variable can hold. Raises SecretRefused, without repeating it."""
    value = text.strip()
    if not MIN_CHARS <= len(value) <= MAX_CHARS:
        raise SecretRefused(
            f"{name}: a value of {len(value)} characters was given",
            f"{MIN_CHARS} to {MAX_CHARS}: a shorter one cannot be cut out of texts",
        )
    if not value.isascii() or not value.isprintable():
        raise SecretRefused(
            f"{name}: lines, control characters or letters beyond ASCII were given", "give one line"
        )
    return value


def check_references(server: str, fields: Mapping[str, Any]) -> None:
    """Raises DefinitionError for a secret in another field than env and headers, and for what is no name."""
    for field, given in fields.items():
        for name in _REFERENCE.findall(json.dumps(given, default=str)):
            if field not in _PLACES:
                raise DefinitionError(
                    f"MCP server {server!r}: {field} names secret {name!r}, and others of the machine, or "
                    f"logs, show {field}",
                    "name secrets in env, or for a url in headers",
                )
            try:
                checked_name(name)
            except SecretRefused as error:
                raise DefinitionError(f"MCP server {server!r}: {error.message}", error.hint) from error


def named_secrets(config: Config) -> dict[str, str]:
    """Of each secret that servers name, the first server that does."""
    found: dict[str, str] = {}
    for server, fields in config.items():
        for name in _REFERENCE.findall(json.dumps([fields.get(place) for place in _PLACES], default=str)):
            found.setdefault(name, server)
    return found


def filled(config: Config, values: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The config with values in place of their names. Raises SecretMissing."""

    def of(server: str, given: Any) -> Any:
        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                raise SecretMissing(found[1], server)
            return values[found[1]]

        if isinstance(given, Mapping):
            return {key: of(server, one) for key, one in given.items()}
        return _REFERENCE.sub(value, given) if isinstance(given, str) else given

    return {
        server: {key: of(server, one) if key in _PLACES else one for key, one in fields.items()}
        for server, fields in config.items()
    }


def profile_values(named: Mapping[str, str]) -> dict[str, str]:
    """The values that the user's profile has. named: see named_secrets. Raises SecretMissing,
    SettingsRefused, SettingsInvalid."""
    if not named:
        return {}
    from upcycle.user_settings.files import read_profile

    found = read_profile(os.environ)
    held = {} if found is None else found.secrets
    for name, server in named.items():
        if name not in held:
            raise SecretMissing(name, server)
    return {name: held[name] for name in named}


def in_memory(values: Mapping[str, str]) -> int:
    """A descriptor of a file that lies in memory alone, for a forked process; the caller closes it."""
    descriptor = os.memfd_create("values")
    os.pwrite(descriptor, json.dumps(dict(values)).encode(), 0)
    return descriptor


def from_memory(descriptor: int) -> dict[str, str]:
    """What it holds; it is closed."""
    with os.fdopen(descriptor, "rb") as file:
        return dict(json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)))


class HiddenValues:
    """Values to be cut out of whatever leaves a process, by exact match, also as JSON writes them: with
    `\\u0026`, `\\/` and `\\"` of any writer, and in a text within a text."""

    def __init__(self, values: Mapping[str, str]) -> None:
        # Longest first; of equal values the first name.
        held = {value: name for name, value in reversed([*values.items()]) if len(value) >= MIN_CHARS}
        self._held = sorted(held.items(), key=lambda one: -len(one[0]))
        spelled = (f"({_spellings(value)})" for value, _ in self._held)
        self._pattern = re.compile("|".join(spelled)) if held else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def cut(self, text: str) -> str:
        """The text with `[secret NAME]` in place of each value."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._shown((found.lastindex or 0) - 1), text)

    def cut_part(self, text: str, *, lacks_begin: bool = False, lacks_end: bool = False) -> str:
        """Of a text whose begin or end is missing: what is left there of a value goes too."""
        text = self.cut(text)
        for number, (value, _) in enumerate(self._held):
            shown = self._shown(number)
            if lacks_begin and (length := _overlap(value, text)):
                text = shown + text[length:]
            if lacks_end and (length := _overlap(text, value)):
                text = text[:-length] + shown
        return text

    def cut_from(self, value: Any) -> Any:
        """The same for every text of a JSON value, keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.cut(value)
        if isinstance(value, Mapping):
            return {self.cut_from(key): self.cut_from(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.cut_from(one) for one in value]
        return value

    def _shown(self, number: int) -> str:
        return f"[secret {self._held[number][1]}]"


NOTHING_HIDDEN: Final = HiddenValues({})


def _spellings(value: str) -> str:
    """A pattern. Where a value goes on, any number of backslashes stands before what JSON may escape; where
    it begins, none, so that a text of backslashes is read once."""
    parts = list[str]()
    for char, run in itertools.groupby(value):
        times = len(list(run))
        if char == "\\":
            parts.append(("" if parts else r"(?<!\\)") + rf"\\{{{times},}}+")
        elif char.isalnum() or char == " ":
            parts.append(re.escape(char) * times)
        else:
            code = f"u00(?i:{ord(char):02x})"
            later = rf"\\*+(?:{re.escape(char)}|{code})"
            parts.append(later if parts else rf"(?:{re.escape(char)}|\\{code})")
            parts += [later] * (times - 1)
    return "".join(parts)


def _overlap(first: str, second: str) -> int:
    """How many characters at the end of one text begin the other; 0 where they are few."""
    longest = min(len(first), len(second))
    return next((n for n in range(longest, _MIN_PART - 1, -1) if first.endswith(second[:n])), 0)
