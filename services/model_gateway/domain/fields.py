"""Fields of request bodies: what each holds, and what becomes of it. The OpenAPI document reads this too.

A field is passed on (or translated), or is a label, which changes no answer, or is refused unless its value
asks for nothing. Absent on purpose is what would reach past sampling into an engine: chat_template,
kv_transfer_params, prompt_embeds, priority, media options.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from model_gateway.domain.errors import BadRequest, UnknownField, Unsupported, WrongType


class FieldRule(StrEnum):
    """What the gateway does with a field."""

    PASSED = "passed"
    LABEL = "label"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BodyField:
    """`kind`: JSON types, `|` between them. `harmless`: values of a refused field that ask for nothing."""

    kind: str
    rule: FieldRule = FieldRule.PASSED
    harmless: tuple[Any, ...] = ()
    why: str = ""


FieldTable = Mapping[str, BodyField]

_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_INT64: Final = 2**63
"""JSON has integers of any size; engines and what is kept of a request have not."""
_SHOWN_CHARS: Final = 80
_EXPECTED: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
}


def passed(kind: str, names: str) -> dict[str, BodyField]:
    """Fields of one kind that are honoured; `names` with spaces between."""
    return {name: BodyField(kind) for name in names.split()}


def labels(kind: str, names: str) -> dict[str, BodyField]:
    """Fields that say something about the caller and change no answer."""
    return {name: BodyField(kind, FieldRule.LABEL) for name in names.split()}


def refused(kind: str, why: str, *harmless: Any) -> BodyField:
    """A field that is refused unless it is null or one of `harmless`."""
    return BodyField(kind, FieldRule.REFUSED, harmless, why)


def check_fields(path: str, table: FieldTable, body: Mapping[str, Any], at: str = "") -> None:
    """at: what stands before the name of a field, of an object within the body. Raises UnknownField,
    WrongType, Unsupported; each names the field."""
    unknown = body.keys() - table.keys()
    if unknown:
        raise _unknown(path, table, min(unknown), at)
    for name, value in body.items():
        if value is None:
            continue
        known, where = table[name], at + name
        if not has_kind(value, known.kind):
            raise WrongType(f"{where} is {_shown(value)}, expected {_expected(known.kind)}", param=where)
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise BadRequest(f"{where} is {value}, which has more than 64 bits", param=where)
        if known.rule is FieldRule.REFUSED and value not in known.harmless:
            raise Unsupported(f"{where} is {_shown(value)}, which {path} refuses: {known.why}", param=where)


def has_kind(value: Any, kind: str) -> bool:
    """Whether a JSON value is of one of the types; true and false are no numbers."""
    return isinstance(value, _types_of(kind)) and ("boolean" in kind or not isinstance(value, bool))


@lru_cache
def _types_of(kind: str) -> tuple[type, ...]:
    return tuple(one for name in kind.split("|") for one in _PYTHON[name])


def _unknown(path: str, table: FieldTable, name: str, at: str) -> UnknownField:
    name = name[:_SHOWN_CHARS]  # it may be as long as a body
    nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UnknownField(f"unknown field {at + name!r} for {path}{hint}", param=at + name)


def _expected(kind: str) -> str:
    return " or ".join(_EXPECTED[one] for one in kind.split("|"))


def _shown(value: Any) -> str:
    """Short enough for a message, whatever it is."""
    return f"{value!r:.{_SHOWN_CHARS}}"
