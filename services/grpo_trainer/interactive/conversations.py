"""Renders conversations as samples: the prompt of each assistant message, and the tokens of the message."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path

from chat_format import ChatFormat
from chat_format.errors import ChatFormatError
from grpo_trainer.domain.errors import InvalidInput
from grpo_trainer.interactive.inputs import ConversationInput, Sample


@lru_cache(maxsize=8)
def _chat_format(policy: Path) -> ChatFormat:
    return ChatFormat.load(policy)


class ChatConversations:
    """Renders with the chat template of the policy in training."""

    async def samples(self, conversation: ConversationInput, policy: Path) -> tuple[Sample, ...]:
        """One sample per assistant message; policy: a HF directory. Raises InvalidInput."""
        return await asyncio.to_thread(_samples, conversation, policy)


def _samples(conversation: ConversationInput, policy: Path) -> tuple[Sample, ...]:
    messages = conversation.messages
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        raise InvalidInput(f"{conversation.name} has no assistant message, so there is nothing to train on")
    try:
        chat = _chat_format(policy)
        chosen = turns[-1:] if conversation.last_turn_only else turns
        return tuple(_sample(conversation, chat, at) for at in chosen)
    except ChatFormatError as error:
        raise InvalidInput(f"{conversation.name}: {error}") from error


def _sample(conversation: ConversationInput, chat: ChatFormat, at: int) -> Sample:
    """The assistant message at `at`, from the end of the generation prompt to its stop token."""
    messages, tools = conversation.messages, conversation.tools
    prompt = chat.render(messages[:at], tools, add_generation_prompt=True)
    whole = chat.render(messages[: at + 1], tools, add_generation_prompt=False)
    if whole[: len(prompt)] != prompt:
        raise InvalidInput(
            f"{conversation.name}: the chat template renders message {at} differently after its own "
            "prompt, so the tokens of the message cannot be separated from the prompt"
        )
    output = whole[len(prompt) :]
    ends = [place for place, token in enumerate(output) if token in chat.stop_token_ids]
    if not ends:
        raise InvalidInput(
            f"{conversation.name}: the chat template does not end message {at} with a stop token"
        )
    return Sample(prompt, output[: ends[0] + 1], [0.0] * (ends[0] + 1))
