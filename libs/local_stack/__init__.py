"""The bus, the object store and the services as processes of one machine, under one supervisor."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from local_stack.stack import Stack, StackRefused, StackSettings
    from local_stack.supervisor import Supervisor

__all__ = ["Stack", "StackRefused", "StackSettings", "Supervisor"]

_HOME_OF = {
    "Stack": "stack",
    "StackRefused": "stack",
    "StackSettings": "stack",
    "Supervisor": "supervisor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'local_stack' has no attribute {name!r}")
    return getattr(import_module(f"local_stack.{_HOME_OF[name]}"), name)
