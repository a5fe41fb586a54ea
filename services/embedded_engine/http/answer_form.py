"""The form that a request wants its answer in: `response_format`, `structured_outputs`, tool calls."""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from embedded_engine.errors import BadRequest
from embedded_engine.grammars import (
    CLOSE,
    OPEN,
    CallMarks,
    call_body_grammar,
    calls_grammar,
    choice_grammar,
    json_grammar,
    regex_grammar,
)
from embedded_engine.http.bodies import SamplingBody
from embedded_engine.http.text import Text
from embedded_engine.http.tool_choice import ToolRule

T = TypeVar("T")
MAX_GRAMMAR_BYTES: Final = 128 << 10
_FORMAT, _OUTPUTS, _CHOICE = "response_format", "structured_outputs", "tool_choice"
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A grammar, and the field that asked for it. calls: free text, whose tool calls follow the grammar."""

    param: str
    grammar: str
    calls: CallMarks | None = None


def answer_form(body: SamplingBody) -> AnswerForm | None:
    """Of an answer without tools. Raises BadRequest."""
    schema = _format_schema(body.response_format)
    if body.structured_outputs is not None:
        if schema is not None:
            raise BadRequest("structured_outputs and response_format cannot be combined", param=_OUTPUTS)
        return _outputs_form(body.structured_outputs)
    if schema is None:
        return None
    return AnswerForm(_FORMAT, json_grammar(_sized(schema, _FORMAT)))


def chat_form(body: SamplingBody, rule: ToolRule, text: Text) -> AnswerForm | None:
    """Of an answer that may be, or must be, tool calls. Raises BadRequest."""
    schema = _format_schema(body.response_format)
    if not rule.functions or not (rule.forced or rule.limited or schema is not None):
        return answer_form(body)
    if body.structured_outputs is not None:
        raise BadRequest("structured_outputs cannot be combined with tools", param=_OUTPUTS)
    functions = list(rule.functions)
    param = _CHOICE if rule.forced or schema is None else _FORMAT
    _sized([*functions, schema], param)
    marks = CallMarks(text.single_token(OPEN), text.single_token(CLOSE))
    if rule.forced or schema is not None:
        answer = None if rule.forced else schema
        return AnswerForm(param, calls_grammar(functions, marks, single=rule.single, answer=answer))
    if marks.open_id is None or marks.close_id is None:
        raise BadRequest(
            f"tool_choice allowed_tools with mode auto needs a vocabulary in which {OPEN} and {CLOSE} are "
            "single tokens, which this model's is not; use mode required, or send fewer tools",
            param=_CHOICE,
        )
    return AnswerForm(_CHOICE, call_body_grammar(functions, marks), calls=marks)


def _format_schema(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise BadRequest(
            f"response_format.type is {kind!r:.80}; use text, json_object or json_schema", param=_FORMAT
        )
    said = response_format.get("json_schema")
    schema = said.get("schema") if isinstance(said, dict) else None
    if not isinstance(schema, dict):
        raise BadRequest("response_format.json_schema.schema is missing or no object", param=_FORMAT)
    return schema


def _outputs_form(outputs: dict[str, Any]) -> AnswerForm:
    asked = {name: value for name, value in outputs.items() if value is not None and value is not False}
    if len(asked) != 1:
        raise BadRequest(
            f"structured_outputs has {sorted(asked)}; give exactly one of json, json_object, regex, choice",
            param=_OUTPUTS,
        )
    ((name, value),) = asked.items()
    _sized(value, _OUTPUTS)
    if name == "json":
        return AnswerForm(_OUTPUTS, json_grammar(_parsed(value)))
    if name == "json_object":
        return AnswerForm(_OUTPUTS, json_grammar(_ANY_OBJECT))
    if name == "regex" and isinstance(value, str):
        return AnswerForm(_OUTPUTS, regex_grammar(value))
    if name == "choice" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return AnswerForm(_OUTPUTS, choice_grammar(value))
    raise BadRequest(
        f"structured_outputs.{name} is {value!r:.80}; the embedded engine takes json (a schema), "
        "json_object (true), regex (a string) and choice (a list of strings)",
        param=_OUTPUTS,
    )


def _parsed(schema: Any) -> dict[str, Any]:
    try:
        found = orjson.loads(schema) if isinstance(schema, str) else schema
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"structured_outputs.json is no JSON: {error}", param=_OUTPUTS) from error
    if not isinstance(found, dict):
        raise BadRequest("structured_outputs.json is no JSON schema: it is no object", param=_OUTPUTS)
    return found


def _sized(value: T, param: str) -> T:
    """The value, when it is neither too large nor nested too deeply to be looked at."""
    try:
        size = len(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"{param} cannot be used: {error}", param=param) from error
    if size > MAX_GRAMMAR_BYTES:
        raise BadRequest(
            f"{param} asks for a grammar of {size} bytes, the limit is {MAX_GRAMMAR_BYTES}; make the schema "
            "smaller",
            param=param,
        )
    return value
