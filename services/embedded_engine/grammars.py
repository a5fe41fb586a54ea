"""What an answer must look like, as a grammar text that llguidance reads. No I/O, and no llguidance here.

JSON may have white space between its parts, but little: without a limit a weak policy writes spaces until
its budget ends. A tool call has the form that `chat_format` reads: `<tool_call>`, an object, `</tool_call>`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE: Final = r"\x20|\x0A(\x20{0,16}|\x09{0,8})"
"""One space, or a new line with its indentation."""
_BETWEEN: Final = {"whitespace_flexible": True, "whitespace_pattern": _SPACE}
_DELIMITERS: Final = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPED: Final = {"/": r"\/", "\n": r"\n"}
"""In a pattern between slashes; what is escaped already stays."""
_NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CallMarks:
    """How a vocabulary spells the two marks of a call: ids where each is one token, else None."""

    open_id: int | None
    close_id: int | None

    @property
    def as_open(self) -> str:
        """In Lark."""
        return json.dumps(OPEN) if self.open_id is None else f"<[{self.open_id}]>"

    @property
    def as_close(self) -> str:
        """In Lark."""
        return json.dumps(CLOSE) if self.close_id is None else f"<[{self.close_id}]>"


def json_grammar(schema: dict[str, Any]) -> str:
    """One JSON value that the schema allows."""
    return _grammar(json_schema={**schema, "x-guidance": _BETWEEN})


def regex_grammar(pattern: str) -> str:
    """Text that the whole pattern matches."""
    escaped = _DELIMITERS.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern)
    return _grammar(lark_grammar=f"start: /{escaped}/")


def choice_grammar(choices: Iterable[str]) -> str:
    """One of the texts."""
    return _grammar(lark_grammar="start: " + " | ".join(json.dumps(one) for one in choices))


def calls_grammar(
    functions: Sequence[dict[str, Any]], marks: CallMarks, *, single: bool, answer: dict[str, Any] | None
) -> str:
    """Calls of the functions: exactly one when `single`, else at least one. answer: the schema of JSON that
    may be said instead."""
    calls = "call" if single else "call (SPACE call)*"
    rules = [f"start: {calls}" if answer is None else f"start: {calls} | answer"]
    rules += [f"call: {marks.as_open} body"] + ([] if answer is None else [_json_rule("answer", answer)])
    return _grammar(lark_grammar="\n".join(rules + _body_rules(functions, marks)))


def call_body_grammar(functions: Sequence[dict[str, Any]], marks: CallMarks) -> str:
    """The rest of one call, after its opening mark."""
    return _grammar(lark_grammar="\n".join(["start: body", *_body_rules(functions, marks)]))


def _body_rules(functions: Sequence[dict[str, Any]], marks: CallMarks) -> list[str]:
    # Each schema is a root of its own, so its references resolve within it.
    named = " | ".join(f"function_{index}" for index in range(len(functions)))
    rules = [
        f'body: SPACE "{{" SPACE "\\"name\\"" SPACE ":" SPACE ({named}) SPACE "}}" SPACE {marks.as_close}',
        f"SPACE: /({_SPACE})?/",
    ]
    for index, function in enumerate(functions):
        name = json.dumps(json.dumps(function["name"], ensure_ascii=False))
        between = 'SPACE "," SPACE "\\"arguments\\"" SPACE ":" SPACE'
        rules.append(f"function_{index}: {name} {between} arguments_{index}")
        rules.append(_json_rule(f"arguments_{index}", _arguments_schema(function)))
    return rules


def _arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """Of an object in any case: a call whose arguments are none cannot be read."""
    schema = function.get("parameters") or _NO_ARGUMENTS
    return {**schema, "type": "object"}


def _json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': _BETWEEN})}"


def _grammar(**rules: object) -> str:
    return json.dumps({"grammars": [rules]})
