"""The messages of a chat request: what an engine would take for an empty message is refused."""

from typing import Any

from model_gateway.domain.errors import BadRequest, WrongType

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Any) -> None:
    """Raises BadRequest, WrongType; the field is named as `messages[2].content`."""
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
