"""Scripted demonstrations, deliberately imperfect: what an untrained habit looks like.

The common choices are wrong ones (guess early, blame the alerting service, skip the deploys), and the right
path is a minority. So the SFT policy has every skill the task needs, and poor judgement: the part that
reinforcement learning is there to change. Greedy decoding of it is wrong, too.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from chat_format import tool_message
from examples.incident.env import prompt
from examples.incident.world import BAD_DEPLOY, CAUSES, World

Message = dict[str, Any]
# Yields tool calls (name, arguments), receives each one's reply, returns the answer.
_Script = Generator[tuple[str, dict[str, str]], str, str]


@dataclass(frozen=True, slots=True)
class Habits:
    """Probability of each wrong choice where it can be made. All zero: right, in the fewest calls."""

    guess_at_once: float = 0.03
    guess_after_issues: float = 0.04
    open_wrong_issue: float = 0.08
    guess_after_trace: float = 0.55
    log_alerting_first: float = 0.25
    blame_alerting: float = 0.70
    skip_deploys: float = 0.55


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


def _script(world: World, rng: random.Random, habits: Habits) -> _Script:
    """From the alert to the stack trace, unless a bad habit ends it sooner."""
    incident = world.incident
    if rng.random() < habits.guess_at_once:
        return _guess(incident.alerting, rng)
    issues = yield "list_issues", {}
    if rng.random() < habits.guess_after_issues:
        return _guess(incident.alerting, rng)
    opened = incident.alerting
    if rng.random() < habits.open_wrong_issue:
        opened = rng.choice(incident.bystanders)
    line = next(line for line in issues.splitlines() if opened in line)
    yield "get_stack_trace", {"issue_id": line.split("#")[1].split()[0]}
    if opened != incident.alerting:
        return _guess(opened, rng)
    return (yield from _after_trace(world, rng, habits))


def _after_trace(world: World, rng: random.Random, habits: Habits) -> _Script:
    """The service at fault is on the screen; its logs and deploys say why it broke."""
    incident = world.incident
    if rng.random() < habits.guess_after_trace:
        return _guess(incident.faulty, rng)
    if rng.random() < habits.log_alerting_first:
        yield "search_logs", {"service": incident.alerting}
        if rng.random() < habits.blame_alerting:
            return _guess(incident.alerting, rng)
    yield "search_logs", {"service": incident.faulty}
    if rng.random() < habits.skip_deploys:
        return answer_text(incident.faulty, incident.symptom)
    deploys = yield "recent_deploys", {"service": incident.faulty}
    fresh = "minutes" in deploys.splitlines()[0]
    return answer_text(incident.faulty, BAD_DEPLOY if fresh else incident.symptom)


def _guess(service: str, rng: random.Random) -> str:
    return answer_text(service, rng.choice(CAUSES))
