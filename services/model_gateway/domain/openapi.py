"""The OpenAPI document, made of the tables that the routes and their checks are made of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from episodes import Split
from identities.entities import RECORDED_GROUP
from model_gateway.domain.calls import CallLimits
from model_gateway.domain.dialects.dialect import SESSION_PREFIX, Asked, Dialect, openai_envelope
from model_gateway.domain.engine_errors import CODES
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.fields import BodyField, FieldRule

Schema = dict[str, Any]

_JSON: Final = "application/json"
_RULES: Final = {
    FieldRule.PASSED: "",
    FieldRule.LABEL: "Accepted; changes no answer.",
    FieldRule.REFUSED: "Refused: {why}.",
}
_EXAMPLE_CHAT: Final[Mapping[str, Any]] = {
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "content": "text",
                "reasoning": "thought",
                "tool_calls": [{"id": "call", "function": {"name": "name", "arguments": "{}"}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}
_EXAMPLES: Final[Mapping[str, Any]] = {
    "model": "model",
    "input": "text",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "text"}],
}


@dataclass(frozen=True, slots=True)
class ReadRoute:
    """A route that is only read."""

    path: str
    aliases: tuple[str, ...]
    summary: str
    needs_key: bool = True


_OF_SESSIONS: Final = f"{SESSION_PREFIX}/v1/models"
MODELS: Final = ReadRoute("/v1/models", ("/models", _OF_SESSIONS), "Models that the key may use")
MODEL: Final = ReadRoute(
    "/v1/models/{model}", ("/models/{model}", f"{_OF_SESSIONS}/{{model}}"), "One of them"
)
SERVING: Final = ReadRoute("/upcycle/v1/serving", (), "Who serves what, and the latest promotions")
USAGE: Final = ReadRoute(
    "/upcycle/v1/usage", (), "Tokens and cost of the key that asks, by model; its limits"
)
USAGE_REPORT: Final = ReadRoute(
    "/upcycle/v1/usage/report", (), "Requests, tokens and cost by day, key and model; of all keys for admin"
)
DOCUMENT: Final = ReadRoute("/openapi.json", (), "This document", needs_key=False)
HEALTH: Final = ReadRoute("/health", (), "That the port answers; nothing else", needs_key=False)
REWARD_PATH: Final = "/v1/sessions/{session_id}/reward"
READ_ROUTES: Final = (MODELS, MODEL, SERVING, USAGE, USAGE_REPORT, DOCUMENT, HEALTH)


def document(dialects: Iterable[Dialect], reads: Iterable[ReadRoute]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, Any] = {dialect.path: {"post": _operation(dialect)} for dialect in dialects}
    paths |= {route.path: {"get": _reading(route)} for route in reads}
    paths[REWARD_PATH] = {"post": _rewarding()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Upcycle model gateway", "version": "1"},
        "security": [{"bearer": []}, {"api_key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {"ErrorCode": {"type": "string", "enum": sorted({*_codes(GatewayError), *CODES})}},
        },
    }


def _operation(dialect: Dialect) -> dict[str, Any]:
    answer: dict[str, Any] = {_JSON: {"schema": _answer(dialect)}}
    if "stream" in dialect.fields:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": dialect.summary,
        "description": _also_at(dialect.paths[1:]),
        "requestBody": {"required": True, "content": {_JSON: {"schema": body_schema(dialect)}}},
        "responses": {
            "200": {"description": "The answer", "content": answer},
            "default": _error(dialect.envelope(GatewayError("what is wrong", param="field"), "req-1")),
        },
    }


def _rewarding() -> dict[str, Any]:
    """The reward of a recorded session, which is in no dialect."""
    number = {"type": "number", "minimum": 0, "maximum": 1}
    schema = {
        "type": "object",
        "properties": {
            "score": number,
            "success": {"type": "boolean"},
            "subscores": {"type": "array", "items": {"type": "object"}},
            "group": {"type": "string", "pattern": f"^{RECORDED_GROUP.pattern}$"},
            "split": {"enum": list(Split)},
        },
        "required": ["score"],
        "additionalProperties": False,
    }
    return {
        "summary": "The reward of a recorded session",
        "description": "Closes the session. The first reward stands; the same again is answered alike.",
        "parameters": [{"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": {_JSON: {"schema": schema}}},
        "responses": {
            "200": {
                "description": "The reward that stands",
                "content": {_JSON: {"schema": {"type": "object"}}},
            },
            "default": _error(openai_envelope(GatewayError("what is wrong", param="score"), "req-1")),
        },
    }


def body_schema(dialect: Dialect) -> Schema:
    """Of the request. A refused field has the values that ask for nothing, and no others."""
    return {
        "type": "object",
        "properties": {name: _field(one) for name, one in sorted(dialect.fields.items())},
        "required": list(dialect.required),
        "additionalProperties": False,
    }


def _field(field: BodyField) -> Schema:
    if field.rule is FieldRule.REFUSED:
        return {"enum": [None, *field.harmless], "description": _RULES[field.rule].format(why=field.why)}
    schema: Schema = {"type": [*field.kind.split("|"), "null"]}
    return {**schema, "description": _RULES[field.rule]} if _RULES[field.rule] else schema


def _answer(dialect: Dialect) -> Schema:
    """Of a translated answer: the shape of an example; else the engine's own."""
    if dialect.reply is None:
        return {"type": "object"}
    body = {name: _EXAMPLES[name] for name in dialect.required}
    call = dialect.read(b"", body, CallLimits(max_n=1, max_tokens=1))
    return _shape(dialect.reply(Asked(body, call, "req-1", 1), _EXAMPLE_CHAT))


def _shape(value: Any) -> Schema:
    """A schema that fits an example; null may be anything."""
    if isinstance(value, Mapping):
        return {"type": "object", "properties": {name: _shape(one) for name, one in value.items()}}
    if isinstance(value, list):
        shapes = [_shape(one) for one in value]
        return {"type": "array", "items": {"anyOf": shapes} if shapes else {}}
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return {"type": names[type(value)]} if type(value) in names else {}


def _reading(route: ReadRoute) -> dict[str, Any]:
    content = {_JSON: {"schema": {"type": "object"}}}
    said = {
        "summary": route.summary,
        "description": _also_at(route.aliases),
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": _error(openai_envelope(GatewayError("what is wrong", param="model"), "req-1")),
        },
    }
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    return {
        **said,
        **({"parameters": parameters} if parameters else {}),
        **({} if route.needs_key else {"security": []}),
    }


def _also_at(aliases: tuple[str, ...]) -> str:
    return f"Also at {', '.join(aliases)}." if aliases else ""


def _error(example: Mapping[str, Any]) -> dict[str, Any]:
    schema = _shape(example)
    error = schema["properties"]["error"]["properties"]
    error["code"] = {"$ref": "#/components/schemas/ErrorCode"}
    error["param"] = {"type": ["string", "null"]}
    return {"description": "Refused, or failed", "content": {_JSON: {"schema": schema}}}


def _codes(error: type[GatewayError]) -> Iterator[str]:
    yield error.code
    for kind in error.__subclasses__():
        yield from _codes(kind)
