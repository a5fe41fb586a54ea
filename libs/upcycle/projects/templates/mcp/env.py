"""The environment: the tools of an MCP server named sentry, and the scenario that grades a diagnosis."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from grading import grade
from world import CAUSES

from upcycle import Environment

env = Environment("my-agent", data=["sentry.py", "projects.py"])

# The line to change for the real Sentry: the command of its MCP server, with a token, as in
# SENTRY = {"command": "…", "args": ["…"], "env": {"SENTRY_AUTH_TOKEN": "${secret:SENTRY_AUTH_TOKEN}"}}
SENTRY = {"command": sys.executable, "args": [str(Path(__file__).with_name("sentry.py"))]}
env.connect_mcp_config({"sentry": SENTRY})


@env.scenario("investigate")
async def investigate(query: str, expected_finding: str | None = None) -> AsyncGenerator[Any, Any]:
    """Investigate errors in Sentry. expected_finding: the right answer, `service: NAME cause: CAUSE`."""
    answer = yield (
        f"You are a Sentry specialist. Investigate: {query}. Find the service at fault and the cause. "
        "A release minutes ago is the cause, whatever was logged. "
        f"Answer as\nservice: NAME cause: {'|'.join(CAUSES)}"
    )
    yield grade(expected_finding or "", answer, len(answer.trajectory.tool_calls))
