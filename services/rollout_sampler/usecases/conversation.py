"""The token sequence of one episode. Guarantee: each prompt extends the earlier tokens exactly, until the
context is compressed: then a new sequence begins, whose first prompt is all that is kept."""

from collections.abc import Sequence
from typing import Any

from chat_format import AssistantTurn, ChatFormat, assistant_message
from environment_client import OpenedEnvironment
from trajectory_body import prompt_message
from upcycle.harness.context import compressed


class Conversation:
    """Grows by what the policy samples and what the environment replies; never encodes sampled text again."""

    def __init__(self, chat: ChatFormat, environment: OpenedEnvironment, *, thinking: str = "") -> None:
        """thinking: `on`, `off`, a budget in tokens, or empty: as the chat template does by itself."""
        self._chat = chat
        self._enable_thinking = None if not thinking else thinking != "off"
        self._tools = environment.tools
        self._messages: list[dict[str, Any]] = [prompt_message(message) for message in environment.prompt]
        self.token_ids: list[int] = []

    def begin(self) -> list[int]:
        """Ids of the scenario's prompt. Raises chat_format.InvalidMessages."""
        ids = self._chat.render(self._messages, self._tools, enable_thinking=self._enable_thinking)
        self.token_ids.extend(ids)
        return ids

    def compress(self) -> list[int] | None:
        """Ids of a new, shorter context that takes the place of this one before the next turn; None where
        nothing can be left out. Raises chat_format.InvalidMessages."""
        shorter = compressed(self._messages)
        if shorter is None:
            return None
        ids = self._chat.render(shorter, self._tools, enable_thinking=self._enable_thinking)
        self._messages, self.token_ids = shorter, list(ids)
        return ids

    def read(self, sampled_ids: Sequence[int]) -> AssistantTurn:
        """Append a completion and return what it means; never raises."""
        turn = self._chat.read(sampled_ids, self.token_ids, self._tools)
        self._messages.append(assistant_message(turn))
        self.token_ids.extend(sampled_ids)
        return turn

    def end_of_thinking(self, sampled_ids: Sequence[int]) -> list[int]:
        """Ids that end the thinking of a turn whose first tokens these are; none where it has ended."""
        return self._chat.end_of_thinking([*self.token_ids, *sampled_ids])

    def reply(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Ids between the sampled turn and the next one, for what the policy reads there. Raises
        chat_format.InvalidMessages."""
        ids = self._chat.bridge(self._messages, messages, self._tools, enable_thinking=self._enable_thinking)
        self._messages.extend(messages)
        self.token_ids.extend(ids)
        return ids
