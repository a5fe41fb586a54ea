"""All dialects. The routes of the gateway and its OpenAPI document are made of this table."""

from functools import partial
from typing import Final

from model_gateway.domain.calls import FIELDS, ApiRoute, read_call
from model_gateway.domain.dialects import counting
from model_gateway.domain.dialects.dialect import Dialect
from model_gateway.domain.dialects.messages import fields as messages_fields
from model_gateway.domain.dialects.messages import reply as messages_reply
from model_gateway.domain.dialects.messages import request as messages_request
from model_gateway.domain.dialects.messages import stream as messages_stream
from model_gateway.domain.dialects.responses import fields as responses_fields
from model_gateway.domain.dialects.responses import reply as responses_reply
from model_gateway.domain.dialects.responses import request as responses_request
from model_gateway.domain.dialects.responses import stream as responses_stream


def _own(route: ApiRoute, summary: str, *required: str, aliases: tuple[str, ...] = ()) -> Dialect:
    """A route that engines have themselves: bytes through."""
    return Dialect(
        path=route.value,
        aliases=aliases,
        summary=summary,
        fields=FIELDS[route],
        required=("model", *required),
        read=partial(read_call, route),
        has_sessions=route.value.startswith("/v1/"),
    )


DIALECTS: Final[tuple[Dialect, ...]] = (
    _own(ApiRoute.CHAT, "OpenAI's chat completions", "messages", aliases=("/chat/completions",)),
    _own(ApiRoute.COMPLETIONS, "OpenAI's completions", "prompt", aliases=("/completions",)),
    _own(
        ApiRoute.CHAT_TOKENS,
        "Chat completions of a prompt of token ids (verifiers)",
        "messages",
        "tokens",
        aliases=("/chat/completions/tokens",),
    ),
    _own(ApiRoute.GENERATE, "Token ids in, token ids out (vLLM)", "token_ids", "sampling_params"),
    _own(ApiRoute.TOKENIZE, "Token ids of a text or of a conversation (vLLM)"),
    _own(ApiRoute.DETOKENIZE, "Text of token ids (vLLM)", "tokens"),
    Dialect(
        path=responses_request.PATH,
        aliases=("/responses",),
        summary="OpenAI's responses, without a store",
        fields=responses_fields.RESPONSES_FIELDS,
        required=("model", "input"),
        read=responses_request.read_request,
        reply=responses_reply.reply_of,
        events=responses_stream.ResponseStream,
        params=responses_request.PARAMS,
    ),
    Dialect(
        path=messages_request.PATH,
        aliases=("/messages",),
        summary="Anthropic's messages",
        fields=messages_fields.MESSAGES_FIELDS,
        required=("model", "max_tokens", "messages"),
        read=messages_request.read_request,
        reply=messages_reply.reply_of,
        events=messages_stream.MessageStream,
        envelope=messages_reply.envelope,
        request_id_header="request-id",
        params=messages_request.PARAMS,
    ),
    Dialect(
        path=counting.RESPONSES_PATH,
        aliases=("/responses/input_tokens",),
        summary="Tokens of the prompt of a response (OpenAI)",
        fields=counting.RESPONSES_COUNT_FIELDS,
        required=("model", "input"),
        read=counting.read_responses,
        reply=counting.responses_count,
        params=responses_request.PARAMS,
    ),
    Dialect(
        path=counting.MESSAGES_PATH,
        aliases=("/messages/count_tokens",),
        summary="Tokens of the prompt of a message (Anthropic)",
        fields=counting.MESSAGES_COUNT_FIELDS,
        required=("model", "messages"),
        read=counting.read_messages,
        reply=counting.messages_count,
        envelope=messages_reply.envelope,
        request_id_header="request-id",
        params=messages_request.PARAMS,
    ),
)
