"""Messages to token ids and back, by a model directory's own chat template: tokens in, tokens out."""

from chat_format.chat_format import ChatFormat
from chat_format.errors import ChatFormatError, InvalidMessages, InvalidModelDir
from chat_format.messages import Message, assistant_message, tool_message
from upcycle.harness.parsing import AssistantTurn, ToolCall

__all__ = [
    "AssistantTurn",
    "ChatFormat",
    "ChatFormatError",
    "InvalidMessages",
    "InvalidModelDir",
    "Message",
    "ToolCall",
    "assistant_message",
    "tool_message",
]
