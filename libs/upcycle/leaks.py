"""Which secrets of a scenario stand in a text that the agent reads."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

SECRET_ARGUMENTS: Final = ("expected", "answer", "gold", "solution", "target", "secret")
"""How the name of an argument begins that holds what the agent has to find."""
MIN_SECRET_CHARS: Final = 3
"""A shorter text occurs by chance."""


def secret_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """The texts among a scenario's arguments that the agent has to find, by the names of the arguments."""
    named = (value for name, value in arguments.items() if name.lower().startswith(SECRET_ARGUMENTS))
    return [value for value in named if isinstance(value, str) and len(value) >= MIN_SECRET_CHARS]


def leaked(secrets: Iterable[str], text: str, others: Iterable[str] = ()) -> list[str]:
    """The secrets that the text holds, whatever their case and white space.

    others: the secrets of other tasks; a text that names one of them too lists candidates, and gives nothing
    away.
    """
    flat = _flat(text)
    held = [one for one in dict.fromkeys(secrets) if len(one) >= MIN_SECRET_CHARS and _flat(one) in flat]
    if not held:
        return []
    known = {_flat(one) for one in held}
    foreign = {_flat(one) for one in others if len(one) >= MIN_SECRET_CHARS} - known
    return [] if any(one in flat for one in foreign) else held


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()
