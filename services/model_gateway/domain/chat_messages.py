"""The messages of a chat request: what an engine would take for an empty message is refused."""

from typing import Any

from model_gateway.domain.engine_fields import MESSAGE_FIELDS
from model_gateway.domain.errors import BadRequest, Unsupported, WrongType
from model_gateway.domain.fields import check_fields

_PLAIN = frozenset({"role", "content"})
ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Any) -> None:
    """Raises BadRequest and its kin; the field is named as `messages[2].content`."""
    if not messages:
        raise BadRequest("messages is empty; a prompt needs at least one message", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise WrongType(f"{where} is {message!r:.80}, expected an object", param=where)
        if message.get("role") not in ROLES:
            raise BadRequest(
                f"{where}.role is {message.get('role')!r:.80}; use one of {', '.join(ROLES)}",
                param=f"{where}.role",
            )
        _check_content(where, message)
        if not message.keys() <= _PLAIN:
            check_fields("messages", MESSAGE_FIELDS, message, f"{where}.")


def check_tools(tools: Any) -> None:
    """Raises WrongType, Unsupported; a tool is named as `tools[2].type`."""
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise WrongType(f"{where} is {tool!r:.80}, expected an object", param=where)
        if tool.get("type") != "function":
            raise Unsupported(
                f"{where}.type is {tool.get('type')!r:.80}: this server has no such tools; use function",
                param=f"{where}.type",
            )


def _check_content(where: str, message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str | list):
        return
    if content is not None:
        raise WrongType(
            f"{where}.content is {content!r:.80}, expected a string or an array of parts",
            param=f"{where}.content",
        )
    if message["role"] != "assistant":
        raise BadRequest(f"{where} has no content", param=f"{where}.content")
