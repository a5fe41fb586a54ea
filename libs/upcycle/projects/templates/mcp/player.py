"""The reference player: issues, stack trace, answer. It reads what an agent reads and nothing else."""

import re
from collections.abc import Sequence
from typing import Any

from world import BAD_DEPLOY, SYMPTOMS

from upcycle import Task

_ALERT = re.compile(r"Investigate: ([a-z-]+) of project ([a-z0-9-]+) ")


def reply(task: Task, messages: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """The next turn: the call that the evidence so far asks for, or the diagnosis."""
    alerting, project = _ALERT.findall(messages[0]["content"])[0]
    evidence = [message["content"] for message in messages if message["role"] == "tool"]
    if not evidence:
        return _call("get_sentry_issues", project=project)
    if len(evidence) == 1:
        line = next(line for line in evidence[0].splitlines() if f"({alerting})" in line)
        return _call("get_stack_trace", issue_id=line.split("#")[1].split()[0])
    *_, frame, logged, releases = evidence[1].splitlines()
    faulty = frame.removeprefix("calls ").split()[0]
    is_fresh = "minutes ago" in releases.split(",")[0]
    symptom = next(cause for cause, line in SYMPTOMS.items() if line in logged)
    return f"service: {faulty} cause: {BAD_DEPLOY if is_fresh else symptom}"


def _call(name: str, **arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}
