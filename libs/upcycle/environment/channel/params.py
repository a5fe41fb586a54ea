"""Parameters of calls of the control channel."""

from collections.abc import Mapping
from typing import Any

from upcycle.environment.channel.frames import INVALID_PARAMS, ChannelError


def arguments_of(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`params[name]` as an object, `{}` when absent. Raises ChannelError."""
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ChannelError(INVALID_PARAMS, f"{name} is of type {type(value).__name__}, not an object")
    return value


def seconds_param(params: Mapping[str, Any], name: str) -> float | None:
    """`params[name]` as seconds above 0; None where there are none."""
    value = params.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None


def text_param(params: Mapping[str, Any], name: str) -> str:
    """`params[name]` as text. Raises ChannelError."""
    value = params.get(name)
    if not isinstance(value, str):
        raise ChannelError(INVALID_PARAMS, f"{name} is {type(value).__name__}, not text")
    return value
