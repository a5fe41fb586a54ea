"""The reference player: issues, stack trace, logs, deploys, answer. It reads what an agent reads and nothing
else."""

from collections.abc import Sequence
from typing import Any

from world import BAD_DEPLOY, SYMPTOMS

from upcycle import Task


def reply(task: Task, messages: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """The next turn: the call that the evidence so far asks for, or the diagnosis."""
    alerting = messages[0]["content"].split()[1]
    evidence = [message["content"] for message in messages if message["role"] == "tool"]
    if not evidence:
        return _call("list_issues")
    if len(evidence) == 1:
        line = next(line for line in evidence[0].splitlines() if f"({alerting})" in line)
        return _call("get_stack_trace", issue_id=line.split("#")[1].split()[0])
    faulty = evidence[1].splitlines()[-1].removeprefix("calls ").split()[0]
    if len(evidence) == 2:
        return _call("search_logs", service=faulty)
    if len(evidence) == 3:
        return _call("recent_deploys", service=faulty)
    is_fresh = "minutes ago" in evidence[3].splitlines()[0]
    symptom = next(cause for cause, line in SYMPTOMS.items() if line in evidence[2])
    return f"service: {faulty} cause: {BAD_DEPLOY if is_fresh else symptom}"


def _call(name: str, **arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}
