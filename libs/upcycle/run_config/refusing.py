"""Errors of a run configuration as sentences, with the field names that the reader used (flag, file and
line).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from upcycle.errors import UpcycleError
from upcycle.run_config.breaking import RULES
from upcycle.run_config.limits import REFUSED, shown
from upcycle.run_config.model import RunSpec
from upcycle.run_config.names import Say

T = TypeVar("T")
_MARK: Final = re.compile(r"\{([a-z0-9_.]+)\}")
_WORDS: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "a table of numbers",
    "dict_type": "a table of numbers",
    "dataclass_type": "a table",
}


class RunConfigInvalid(UpcycleError, ValueError):
    """A run cannot be what its configuration says; nothing was submitted. reasons: a sentence each."""

    kind = "run_config_invalid"

    def __init__(self, reasons: Iterable[str], hint: str = "") -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons), hint)


def checked(kind: type[T], values: Mapping[str, Any], say: Say = str) -> T:
    """An object of the model from nested plain values. say: what the reader calls a dotted path, such as
    `training.steps`. Raises RunConfigInvalid with every reason."""
    try:
        made: T = _adapter(cast(Hashable, kind)).validate_python(values)
    except ValidationError as error:
        raise RunConfigInvalid(reasons_of(error, kind, say)) from error
    return made


def reasons_of(error: ValidationError, kind: type, say: Say = str) -> list[str]:
    """The sentences of pydantic's errors about an object of the model."""
    return [text for one in error.errors(include_url=False) for text in _reasons(one, kind, say)]


def _reasons(error: Any, kind: type, say: Say) -> Iterator[str]:
    path, value, what = ".".join(map(str, error["loc"])), error["input"], error["type"]
    if what == RULES:
        prefix = f"{path}." if path else ""
        for reason in error["ctx"]["reasons"]:
            yield _MARK.sub(lambda found: say(prefix + found[1]), reason)
    elif what == REFUSED:
        yield f"{say(path)} {error['ctx']['text']}"
    elif what == "unexpected_keyword_argument":
        yield f"{say(path)}: unknown key {error['loc'][-1]!r}; {nearest_key(path, kind)}"
    elif what == "missing":
        yield f"{say(path)} is not set"
    elif what == "enum":
        yield f"{say(path)} {shown(value)} does not exist; known: {error['ctx']['expected']}"
    elif what in _WORDS:
        yield f"{say(path)} = {shown(value)} is not {_WORDS[what]}"
    else:
        yield f"{say(path)}: {error['msg']}"


def nearest_key(path: str, kind: type) -> str:
    """The key that was probably meant: one of the same table, else one of that name elsewhere."""
    above, _, name = path.rpartition(".")
    known = leaves(kind)
    prefix = f"{above}." if above else ""
    here = sorted({key[len(prefix) :].partition(".")[0] for key in known if key.startswith(prefix)})
    last = {key.rpartition(".")[2]: key for key in known}
    elsewhere = get_close_matches(name, last, n=1)
    if elsewhere and not get_close_matches(name, here, n=1):
        return f"did you mean {last[elsewhere[0]]!r}?"
    return nearest(name, here)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the name that was probably meant, or all of them."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def leaves(kind: type = RunSpec) -> Mapping[str, Any]:
    """Every field that holds a value by its dotted path, such as `training.steps`, as pydantic knows it."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for one in fields(kind):
        section = section_of(hints[one.name])
        if section is None:
            found[one.name] = _declared(kind, one.name)
        else:
            found |= {f"{one.name}.{name}": info for name, info in leaves(section).items()}
    return found


def _declared(kind: Any, name: str) -> Any:
    """A field as the class knows it that declares it: subclasses lose its docstring."""
    declaring = next(one for one in kind.__mro__ if name in get_annotations(one))
    return declaring.__pydantic_fields__[name]


def section_of(annotation: Any) -> type | None:
    """The class of a table, such as Training; None for a value."""
    choices = [annotation, *get_args(annotation)]
    return next((one for one in choices if isinstance(one, type) and is_dataclass(one)), None)
