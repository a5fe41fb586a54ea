"""Environments: tools an agent can call and scenarios that grade it. See `Environment`."""

from upcycle.environment.core import Environment
from upcycle.environment.loading import load_environment
from upcycle.environment.tools import ToolResult, ToolSpec

__all__ = ["Environment", "ToolResult", "ToolSpec", "load_environment"]
