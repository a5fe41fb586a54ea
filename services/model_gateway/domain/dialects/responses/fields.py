"""The fields of /v1/responses. What needs a store, or a server that works on its own, is refused by name."""

from typing import Final

from model_gateway.domain.fields import FieldTable, labels, passed, refused

_NO_STORE: Final = "nothing is stored here; send the whole conversation as input"

RESPONSES_FIELDS: Final[FieldTable] = {
    **passed("string", "model instructions checkpoint"),
    **passed("string|array", "input stop"),
    **passed("integer", "max_output_tokens top_logprobs seed top_k"),
    **passed("number", "temperature top_p min_p"),
    **passed("boolean", "stream parallel_tool_calls"),
    **passed("array", "include tools"),
    **passed("object", "reasoning text stream_options"),
    **passed("string|object", "tool_choice"),
    **labels("string", "user safety_identifier prompt_cache_key prompt_cache_retention"),
    **labels("object", "metadata prompt_cache_options"),
    "access_programs": refused("object|array", "there are none"),
    "background": refused("boolean", _NO_STORE, False),
    "context_management": refused("object|array", "the client keeps the conversation within the context"),
    "conversation": refused("string|object", _NO_STORE),
    "image": refused("object", "answers are text"),
    "max_tool_calls": refused("integer", "it bounds built-in tools, and there are none"),
    "moderation": refused("string|object|boolean", "nothing is moderated here; ask a moderation service"),
    "previous_response_id": refused("string", _NO_STORE),
    "prompt": refused("object", "no prompt templates are stored; send instructions and input"),
    "service_tier": refused("string", "there is one tier; leave it out", "auto", "default"),
    "store": refused("boolean", "nothing is stored; send false or leave it out", False),
    "truncation": refused("string", "a prompt beyond the context is refused, never cut", "disabled"),
}
