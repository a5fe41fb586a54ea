"""The dialects of providers."""

from collections.abc import Mapping
from typing import Final

from model_gateway.domain.upstream import openai
from model_gateway.domain.upstream.anthropic import reply as anthropic_reply
from model_gateway.domain.upstream.anthropic import request as anthropic_request
from model_gateway.domain.upstream.providers import UpstreamDialect
from model_gateway.domain.upstream.wire import UpstreamWire

WIRES: Final[Mapping[UpstreamDialect, UpstreamWire]] = {
    UpstreamDialect.OPENAI: openai.WIRE,
    UpstreamDialect.ANTHROPIC: UpstreamWire(
        anthropic_request.headers,
        anthropic_request.request,
        anthropic_reply.reply,
        anthropic_reply.AnthropicStream,
    ),
}
