"""Plays many incidents at once in one process: the yardstick of the warm start and of the tests.

The platform's own loop (sampler, engine, environments) does the same over the network; this one needs only
torch. Rows advance in lock-step over one cache, each appending one token per forward: a forced one (the
environment's reply) while there is any, else a sampled one. So there is no padding, and the logprobs are
those of sampling.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from chat_format import ChatFormat, assistant_message, tool_message
from examples.incident.env import env, prompt
from examples.incident.grading import Grade, grade
from examples.incident.world import Incident, World

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": tool.spec.to_json()} for tool in env.tools.values()
]


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of an episode, and how tokens are drawn. temperature 0 is greedy."""

    max_turns: int = 6
    max_tokens: int = 32
    temperature: float = 1.0


@dataclass(slots=True)
class Episode:
    """One played incident. token_ids, sampled, logprobs: [L]; sampled marks what the policy wrote; logprobs
    are zero elsewhere."""

    incident: Incident
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    grade: Grade | None = None
    num_turns: int = 0
    num_calls: int = 0


class _Row:
    """One episode in progress: its world, its history and the tokens still to be forced."""

    def __init__(self, incident: Incident, chat: ChatFormat, limits: Limits) -> None:
        self.episode = Episode(incident)
        self._world = World(incident)
        self._chat, self._limits = chat, limits
        self._history: list[dict[str, Any]] = [{"role": "user", "content": prompt(incident.alerting)}]
        self._turn: list[int] = []
        self.forced = deque(chat.render(self._history, TOOLS))

    @property
    def done(self) -> bool:
        return self.episode.grade is not None

    def append(self, token: int, logprob: float) -> int:
        """Take the next token: the forced one if there is any, else the sampled one given."""
        if self.done:
            return token
        episode, was_sampled = self.episode, not self.forced
        token = token if was_sampled else self.forced.popleft()
        episode.token_ids.append(token)
        episode.sampled.append(was_sampled)
        episode.logprobs.append(logprob if was_sampled else 0.0)
        if was_sampled:
            self._turn.append(token)
            stopped = token in self._chat.stop_token_ids
            if stopped or len(self._turn) >= self._limits.max_tokens:
                self._end_turn(stopped)
        return token

    def _end_turn(self, stopped: bool) -> None:
        turn = self._chat.parse(self._turn)
        self._turn = []
        self.episode.num_turns += 1
        answered = stopped and not turn.tool_calls and turn.parse_error is None
        if answered or not stopped or self.episode.num_turns >= self._limits.max_turns:
            self.episode.num_calls = self._world.num_calls
            answer = turn.text if answered else ""
            self.episode.grade = grade(self.episode.incident, answer, self._world.num_calls)
            self._world.close()
            return
        replies = [_reply(self._world, call.name, call.arguments) for call in turn.tool_calls]
        new = [tool_message(reply) for reply in replies]
        new = new or [
            {"role": "user", "content": f"Your last message could not be read: {turn.parse_error}."}
        ]
        self._history.append(assistant_message(turn))
        self.forced.extend(self._chat.bridge(self._history, new, TOOLS))
        self._history.extend(new)


def _reply(world: World, name: str, arguments: dict[str, Any]) -> str:
    tool = env.tools.get(name)
    if tool is None:
        return f"no tool {name!r}"
    wanted = set(tool.spec.parameters["properties"])
    if set(arguments) != wanted or not all(isinstance(value, str) for value in arguments.values()):
        return f"{name}: give {', '.join(sorted(wanted)) or 'no arguments'}"
    return str(getattr(world, name)(**arguments))


@torch.no_grad()
def play(
    model: Any, chat: ChatFormat, incidents: Sequence[Incident], limits: Limits, generator: torch.Generator
) -> list[Episode]:
    """One episode per incident, in the given order."""
    model.eval()
    rows = [_Row(incident, chat, limits) for incident in incidents]
    episodes = [row.episode for row in rows]
    shared = min(len(row.forced) for row in rows)
    tokens = torch.tensor([[row.append(0, 0.0) for _ in range(shared)] for row in rows])
    cache = DynamicCache(config=model.config)
    while rows:
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
            :, -1
        ]
        drawn, logprobs = _draw(logits.float(), limits.temperature, generator)
        pairs = zip(rows, drawn.tolist(), logprobs.tolist(), strict=True)
        tokens = torch.tensor([[row.append(token, logprob)] for row, token, logprob in pairs])
        rows, tokens = _drop_done(rows, tokens, cache)
    return episodes


def _draw(
    logits: torch.Tensor, temperature: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits: [B, V]. returns: drawn token ids [B] and their logprobs at the sampling temperature [B]."""
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if temperature == 0.0:
        drawn = logprobs.argmax(dim=-1, keepdim=True)
    else:
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return drawn.squeeze(1), logprobs.gather(1, drawn).squeeze(1)


def _drop_done(rows: list[_Row], tokens: torch.Tensor, cache: Any) -> tuple[list[_Row], torch.Tensor]:
    """Leave finished rows out once a quarter of the batch is finished: selecting copies the whole cache."""
    kept = [index for index, row in enumerate(rows) if not row.done]
    if kept and len(kept) > 0.75 * len(rows):
        return rows, tokens
    if kept:
        cache.batch_select_indices(torch.tensor(kept))
    return [rows[index] for index in kept], tokens[kept]
