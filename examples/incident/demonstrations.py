"""Scripted demonstrations, deliberately imperfect: what an untrained habit looks like.

At every decision the most common choice is a wrong one (blame the alerting service, guess early, skip the
deploys), and the right one is a minority. So the cloned policy has every skill the task needs, and poor judgement:
the part that reinforcement learning is there to change. Greedy decoding of it is wrong, too.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chat_format import tool_message
from examples.incident.env import prompt
from examples.incident.world import BAD_DEPLOY, CAUSES, World

Message = dict[str, Any]
_Action = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Habits:
    """Probability of each wrong choice where it can be made. All zero: the right diagnosis in the fewest calls."""

    guess_at_once: float = 0.08
    guess_after_issues: float = 0.08
    open_wrong_issue: float = 0.12
    guess_after_trace: float = 0.40
    log_alerting_first: float = 0.35
    blame_alerting: float = 0.75
    skip_deploys: float = 0.60


RIGHT = Habits(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def demonstrate(world: World, rng: random.Random, habits: Habits) -> list[Message]:
    """One conversation, from the prompt to the answer, with the tools' real replies."""
    messages: list[Message] = [{"role": "user", "content": prompt(world.incident.alerting)}]
    script = _script(world, rng, habits)
    reply = ""
    while True:
        try:
            name, arguments = script.send(reply) if messages[1:] else next(script)
        except StopIteration as end:
            messages.append({"role": "assistant", "content": end.value})
            return messages
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        tool: Callable[..., str] = getattr(world, name)
        reply = tool(**arguments)
        messages.append(tool_message(reply))


def answer_text(service: str, cause: str) -> str:
    """The answer format that the prompt asks for."""
    return f"service: {service} cause: {cause}"


def _script(world: World, rng: random.Random, habits: Habits) -> Any:
    """A generator of actions that receives each tool's reply and returns the answer."""
    incident = world.incident

    def guess(service: str) -> str:
        return answer_text(service, rng.choice(CAUSES))

    if rng.random() < habits.guess_at_once:
        return guess(incident.alerting)
    issues = yield "list_issues", {}
    if rng.random() < habits.guess_after_issues:
        return guess(incident.alerting)
    opened = incident.alerting
    if rng.random() < habits.open_wrong_issue:
        opened = rng.choice(incident.bystanders)
    issue = next(line.split()[0] for line in issues.splitlines() if line.startswith(opened))
    yield "get_stack_trace", {"issue_id": issue}
    if opened != incident.alerting:
        return guess(opened)
    if rng.random() < habits.guess_after_trace:
        return guess(incident.faulty)
    if rng.random() < habits.log_alerting_first:
        yield "search_logs", {"service": incident.alerting}
        if rng.random() < habits.blame_alerting:
            return guess(incident.alerting)
    return (yield from _examine(world, rng, habits))


def _examine(world: World, rng: random.Random, habits: Habits) -> Iterator[_Action]:
    incident = world.incident
    yield "search_logs", {"service": incident.faulty}
    if rng.random() < habits.skip_deploys:
        return answer_text(incident.faulty, incident.symptom)
    deploys: Any = yield "recent_deploys", {"service": incident.faulty}
    fresh = "minutes" in str(deploys).splitlines()[0]
    return answer_text(incident.faulty, BAD_DEPLOY if fresh else incident.symptom)
