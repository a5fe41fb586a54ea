"""An episode in chat messages: for `upcycle play`, agents in this process and models of other programs."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from upcycle.harness.context import COMPRESS, STOP, compressed
from upcycle.harness.parsing import AssistantTurn, ToolCall
from upcycle.harness.turns import TakenTurn, ToolOutcome

Messages = Sequence[Mapping[str, Any]]
"""Of the OpenAI form: `{"role", "content", "tool_calls"?, "tool_call_id"?}`."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One turn of a player. was_cut: by its token budget. num_tokens: prompt and completion as the player's
    server counted them; 0 where nothing counts."""

    said: AssistantTurn
    was_cut: bool = False
    num_tokens: int = 0


class ChatPlayer(Protocol):
    """What answers a conversation: a person, a script, a model behind a URL."""

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """The next assistant turn. tools: OpenAI function specs. max_tokens: of this turn. Raises
        UpcycleError."""
        ...


@dataclass(frozen=True, slots=True)
class TokenBudgets:
    """Tokens that a player may sample in one turn, and that the conversation may have. context: `stop`, or
    `compress`: where a turn might not fit any more, older results of tools are left out."""

    per_turn: int = 4096
    per_episode: int = 131_072
    context: str = STOP


class EpisodeWatcher:
    """Sees an episode as it is played; this one looks away."""

    def on_turn(self, turn: TakenTurn) -> None:
        """The player took a turn."""

    def on_outcome(self, call: ToolCall, outcome: ToolOutcome) -> None:
        """A call of the last turn ended, or was refused."""


class ChatDriver:
    """A TurnDriver over chat messages. `messages` and `turns` grow as the episode goes on; `messages` stay
    whole where the player is shown a compressed context."""

    def __init__(
        self,
        prompt: Messages,
        tools: Messages,
        player: ChatPlayer,
        call_tool: Callable[[ToolCall], Awaitable[ToolOutcome]],
        *,
        budgets: TokenBudgets = TokenBudgets(),
        watcher: EpisodeWatcher | None = None,
    ) -> None:
        self.messages: list[Mapping[str, Any]] = list(prompt)
        self.turns: list[TakenTurn] = []
        self._tools = tools
        self._player = player
        self._call_tool = call_tool
        self._budgets = budgets
        self._watcher = watcher or EpisodeWatcher()
        self._num_tokens = 0
        self._shown: list[Mapping[str, Any]] = list(prompt)

    async def begin(self) -> None:
        """Nothing: the prompt is in `messages`."""

    async def take_turn(self, index: int) -> TakenTurn | None:
        """Ask the player. Raises what it raises."""
        is_new = self._left < self._budgets.per_turn and self._compressed()
        if self._left <= 0:
            return None
        reply = await self._player.reply(self._shown, self._tools, min(self._budgets.per_turn, self._left))
        self._num_tokens = reply.num_tokens or self._num_tokens
        turn = TakenTurn(reply.said, reply.was_cut, is_new)
        self.turns.append(turn)
        self._append(_assistant(index, reply.said))
        self._watcher.on_turn(turn)
        return turn

    async def run_call(self, position: int, call: ToolCall) -> ToolOutcome:
        """Run it in the environment. Raises what that raises."""
        return await self._call_tool(call)

    def add_outcome(self, position: int, outcome: ToolOutcome) -> None:
        """It is in the turn already: show it."""
        self._watcher.on_outcome(self.turns[-1].said.tool_calls[position], outcome)

    def observe(self, messages: Sequence[dict[str, Any]]) -> None:
        """Append the messages, each result under the id of its call."""
        index = len(self.turns) - 1
        for position, message in enumerate(messages):
            is_result = message["role"] == "tool"
            self._append({**message, "tool_call_id": call_id(index, position)} if is_result else message)

    @property
    def _left(self) -> int:
        return self._budgets.per_episode - self._num_tokens

    def _append(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        self._shown.append(message)

    def _compressed(self) -> bool:
        """Whether the player is shown a shorter context from here on. Its tokens are estimated by its length,
        until the player's server counts them again."""
        shorter = compressed(self._shown) if self._budgets.context == COMPRESS else None
        if shorter is None:
            return False
        before, after = _num_chars(self._shown), _num_chars(shorter)
        self._num_tokens = self._num_tokens * after // max(1, before)
        self._shown = list(shorter)
        return True


def _num_chars(messages: Messages) -> int:
    return sum(len(json.dumps(dict(message), ensure_ascii=False)) for message in messages)


def _assistant(index: int, said: AssistantTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.tool_calls:
        message["tool_calls"] = [
            {
                "id": call_id(index, position),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for position, call in enumerate(said.tool_calls)
        ]
    return message


def call_id(index: int, position: int) -> str:
    """Of a call, by its turn and its place in it."""
    return f"call-t{index}c{position}"
