"""What is wrong with a command line, in one line: the word, its value, and the way out."""

from difflib import get_close_matches
from typing import Final

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

_TAKES: Final[dict[object, str]] = {int: "a whole number", float: "a number"}


def misread(error: CycloptsError) -> str:
    """Of a command line that no command was begun for."""
    lists = f"`{' '.join(('upcycle', *(error.command_chain or ())))} --help`"
    match error:
        case UnusedCliTokensError():
            left = ", ".join(repr(one) for one in error.unused_tokens or ())
            return f"{left}: more arguments than it has; {lists} names them"
        case MissingArgumentError():
            return _missing(error, lists)
        case CoercionError() if error.target_type in _TAKES and error.token is not None:
            name = error.token.keyword or _name(error)
            return f"{name} is {error.token.value!r}; it takes {_TAKES[error.target_type]}"
        case UnknownOptionError() if not _near(error):
            return f"{error} {lists} names those that there are"
    return str(error)


def _missing(error: MissingArgumentError, lists: str) -> str:
    if error.keyword is not None:
        return f"{error.keyword} has no value; {lists} says what it takes"
    return f"{_name(error)} is missing; {lists} says what it is"


def _name(error: CycloptsError) -> str:
    """Of an argument as the help has it: TASKS by its place, --role by its name."""
    if error.argument is None:
        return "a value"
    name: str = error.argument.name
    return name.lstrip("-").replace("-", "_").upper() if error.argument.field_info.is_positional else name


def _near(error: UnknownOptionError) -> bool:
    """Whether the message suggests an option."""
    names = [name for one in error.argument_collection if one.parse for name in one.names]
    return bool(get_close_matches(error.token.keyword or error.token.value, names, n=1))
