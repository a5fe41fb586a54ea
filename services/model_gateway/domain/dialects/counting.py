"""How many tokens a prompt has, as Anthropic's and OpenAI's clients ask before they send it: the prompt of
the dialect's own request, tokenized by the engine that would answer it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.calls import ApiRoute, CallLimits, CompletionCall, as_object, read_call
from model_gateway.domain.dialects.dialect import Asked, Body
from model_gateway.domain.dialects.messages import request as messages
from model_gateway.domain.dialects.messages.fields import MESSAGES_FIELDS
from model_gateway.domain.dialects.responses import request as responses
from model_gateway.domain.dialects.responses.fields import RESPONSES_FIELDS
from model_gateway.domain.fields import FieldTable, check_fields, refused

MESSAGES_PATH: Final = f"{messages.PATH}/count_tokens"
RESPONSES_PATH: Final = f"{responses.PATH}/input_tokens"
_OF_ANSWERS: Final = (
    "max_tokens", "max_output_tokens", "stream", "stream_options", "stop", "stop_sequences", "include",
    "seed", "temperature", "top_p", "top_k", "min_p", "top_logprobs", "store", "background", "prompt",
)  # fmt: skip
_OF_PROMPTS: Final = ("model", "checkpoint", "messages", "tools")


def _of_prompts(table: FieldTable) -> FieldTable:
    return {name: field for name, field in table.items() if name not in _OF_ANSWERS}


MESSAGES_COUNT_FIELDS: Final[FieldTable] = _of_prompts(MESSAGES_FIELDS)
RESPONSES_COUNT_FIELDS: Final[FieldTable] = {
    **_of_prompts(RESPONSES_FIELDS),
    "personality": refused("string", "no engine has one; say it in the instructions"),
}


def read_messages(raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest and its kin."""
    return _read(MESSAGES_PATH, MESSAGES_COUNT_FIELDS, body, limits, messages.chat_of)


def read_responses(raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest and its kin."""
    return _read(RESPONSES_PATH, RESPONSES_COUNT_FIELDS, body, limits, responses.chat_of)


def messages_count(asked: Asked, tokenized: Mapping[str, Any]) -> Body:
    """Anthropic's answer."""
    return {"input_tokens": _count(tokenized)}


def responses_count(asked: Asked, tokenized: Mapping[str, Any]) -> Body:
    """OpenAI's answer."""
    return {"object": "response.input_tokens", "input_tokens": _count(tokenized)}


def _read(
    path: str,
    fields: FieldTable,
    body: Any,
    limits: CallLimits,
    chat_of: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> CompletionCall:
    asked = as_object(body)
    check_fields(path, fields, asked)
    chat = chat_of(asked)
    counted = {name: chat[name] for name in _OF_PROMPTS if chat.get(name) is not None}
    return read_call(ApiRoute.TOKENIZE, orjson.dumps(counted), counted, limits)


def _count(tokenized: Mapping[str, Any]) -> int:
    return int(tokenized.get("count") or 0)
