"""Environments: tools an agent can call and scenarios that grade it. See `Environment`.

Names are resolved on first use: scenarios need the schema of this package, and `core` needs scenarios, so
that either may be imported first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcycle.environment.core import Environment
    from upcycle.environment.loading import load_environment
    from upcycle.environment.tools import ToolResult, ToolSpec

_HOME = {
    "Environment": "upcycle.environment.core",
    "ToolResult": "upcycle.environment.tools",
    "ToolSpec": "upcycle.environment.tools",
    "load_environment": "upcycle.environment.loading",
}

__all__ = ["Environment", "ToolResult", "ToolSpec", "load_environment"]


def __getattr__(name: str) -> Any:
    """Resolve a public name; an unknown one is an AttributeError that lists the valid ones."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'upcycle.environment' has no attribute {name!r}; it offers {sorted(_HOME)}")
