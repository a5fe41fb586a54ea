"""The fields of /v1/messages."""

from typing import Final

from model_gateway.domain.fields import FieldTable, labels, passed, refused

MESSAGES_FIELDS: Final[FieldTable] = {
    **passed("string", "model checkpoint"),
    **passed("integer", "max_tokens top_k seed"),
    **passed("number", "temperature top_p min_p"),
    **passed("boolean", "stream"),
    **passed("array", "messages stop_sequences tools"),
    **passed("string|array", "system"),
    **passed("object", "output_config thinking tool_choice"),
    **labels("object", "metadata cache_control"),
    **labels("string", "user_profile_id workspace_id"),
    "container": refused("string|object", "this server runs no code"),
    "context_management": refused("object", "the client keeps the conversation within the context"),
    "diagnostics": refused("object", "there are none; the answer's headers say which weights made it"),
    "inference_geo": refused("string", "the answer comes from where this deployment is"),
    "mcp_servers": refused("array", "this server calls no tools; the client does", []),
    "output_format": refused("object", "it was replaced by output_config.format"),
    "service_tier": refused("string", "there is one tier; leave it out", "auto", "standard_only"),
    "speed": refused("string", "there is one speed; leave it out", "standard"),
}
