"""One model directory's chat format: render messages, extend a sampled conversation, read sampled turns.

Guarantee: `prompt + sampled + bridge(...)` is the next prompt, token for token, whatever was sampled. Nothing
that the policy wrote is ever decoded and encoded again on its way to the optimizer.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from chat_format.errors import InvalidMessages, InvalidModelDir
from chat_format.messages import Message, defuse, normalise
from chat_format.template import ChatTemplate
from upcycle.harness.parsing import OPEN_REASONING, AssistantTurn, parse_turn, read_turn

# Stands for a sampled turn while the text around it is rendered; letters only, so no template rewrites it.
_PLACEHOLDER = "zqsampledturnzq"
_OPENING_TOKENS = 16
"""At the end of a prompt; enough for `<think>` and the line after it, however it is cut into tokens."""


class ChatFormat:
    """Tokenizer, chat template and stop tokens of one policy. Immutable and safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, stop_token_ids: Sequence[int]) -> None:
        if not stop_token_ids:
            raise InvalidModelDir("the model names no eos_token_id; add it to generation_config.json")
        self._tokenizer = tokenizer
        self._template = template
        self._stop_token_id = stop_token_ids[0]
        stop_text = tokenizer.id_to_token(self._stop_token_id)
        if stop_text is None:
            raise InvalidModelDir(f"eos_token_id {self._stop_token_id} is not in tokenizer.json")
        self._stop_text: str = stop_text
        added = tokenizer.get_added_tokens_decoder().values()
        self._control_tokens = tuple(token.content for token in added if token.special)
        self.stop_token_ids: frozenset[int] = frozenset(stop_token_ids)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, model_dir: Path) -> "ChatFormat":
        """Reads tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json.

        Raises InvalidModelDir where a file is missing or unusable.
        """
        config = _read_json(model_dir / "tokenizer_config.json")
        try:
            tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception for a missing or broken file
            raise InvalidModelDir(f"{model_dir / 'tokenizer.json'} cannot be loaded: {error}") from error
        template = ChatTemplate(_template_source(model_dir, config), _special_tokens(config))
        return cls(tokenizer, template, _stop_token_ids(model_dir, config, tokenizer))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        add_generation_prompt: bool = True,
        *,
        enable_thinking: bool | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready for the policy to continue.

        `tools` are OpenAI function specs. `enable_thinking=None` leaves thinking to the template.
        Control tokens spelled out in content are defused.
        Raises InvalidMessages.
        """
        return self.encode(self._text(messages, tools, add_generation_prompt, enable_thinking))

    def bridge(
        self,
        messages_so_far: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        stopped: bool = True,
        enable_thinking: bool | None = None,
    ) -> list[int]:
        """Token ids that follow the last sampled token, up to and including the next generation prompt.

        `messages_so_far` ends with the assistant turn that was just sampled; `new_messages` answer it.
        `stopped=False` says that the turn was cut by length: no stop token was sampled, so the bridge begins
        with it. Raises InvalidMessages.
        """
        if not messages_so_far or messages_so_far[-1].get("role") != "assistant":
            raise InvalidMessages("messages_so_far must end with the assistant turn that was sampled")
        if not new_messages:
            raise InvalidMessages("new_messages is empty; a bridge leads to at least one new message")
        sampled = {"role": "assistant", "content": _PLACEHOLDER}
        text = self._text([*messages_so_far[:-1], sampled, *new_messages], tools, True, enable_thinking)
        _, found, after = text.rpartition(_PLACEHOLDER)
        _, stop, suffix = after.partition(self._stop_text)
        if not found or not stop:
            raise InvalidMessages(
                f"the chat template does not end an assistant turn with {self._stop_text!r}, "
                "so a sampled conversation cannot be extended token by token"
            )
        ids = self.encode(suffix)
        return ids if stopped else [self._stop_token_id, *ids]

    def read(
        self, token_ids: Sequence[int], context: Sequence[int], tools: Sequence[Message] = ()
    ) -> AssistantTurn:
        """As `parse`, with the reasoning apart. context: the ids before these, which may have opened it."""
        is_open = self.decode(context[-_OPENING_TOKENS:]).rstrip().endswith(OPEN_REASONING)
        return self._parsed(token_ids, partial(read_turn, tools=tools, is_open=is_open))

    def parse(self, token_ids: Sequence[int], tools: Sequence[Message] = ()) -> AssistantTurn:
        """The turn in sampled ids (with or without the stop token). tools: as in `render`; their schemas give
        arguments in tags their types. Never raises: see `parse_error`."""
        return self._parsed(token_ids, partial(parse_turn, tools=tools))

    def _parsed(self, token_ids: Sequence[int], read: Callable[[str], AssistantTurn]) -> AssistantTurn:
        sampled = self._before_stop(token_ids)
        known = [token for token in sampled if 0 <= token < self.vocab_size]
        text = self._tokenizer.decode(known, skip_special_tokens=True)
        if len(known) != len(sampled):
            return AssistantTurn(text=text, parse_error=f"token id outside 0..{self.vocab_size - 1}")
        return read(text)

    def end_of_thinking(self, token_ids: Sequence[int]) -> list[int]:
        """Ids that close what a `<think>` opened in the prompt or in the tokens sampled since; none where
        nothing is open."""
        text = self.decode(token_ids)
        return self.encode("\n</think>\n\n") if text.rfind("<think>") > text.rfind("</think>") else []

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of the ids, control tokens included. Ids outside the vocabulary are left out."""
        known = [token for token in token_ids if 0 <= token < self.vocab_size]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text; control tokens in it become control tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        generate: bool,
        enable_thinking: bool | None,
    ) -> str:
        safe = defuse(normalise(messages), self._control_tokens)
        specs = defuse(list(tools), self._control_tokens)
        return self._template.render(
            safe, specs, add_generation_prompt=generate, enable_thinking=enable_thinking
        )

    def _before_stop(self, token_ids: Sequence[int]) -> list[int]:
        for position, token in enumerate(token_ids):
            if token in self.stop_token_ids:
                return list(token_ids[:position])
        return list(token_ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidModelDir(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InvalidModelDir(f"{path} holds type {type(value).__name__}, expected an object")
    return value


def _template_source(model_dir: Path, config: dict[str, Any]) -> str:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    inline = config.get("chat_template")
    if isinstance(inline, str):
        return inline
    raise InvalidModelDir(
        f"{model_dir} has no chat_template.jinja and no chat_template in tokenizer_config.json"
    )


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found


def _stop_token_ids(model_dir: Path, config: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    path = model_dir / "generation_config.json"
    declared = _read_json(path).get("eos_token_id") if path.is_file() else None
    if isinstance(declared, int):
        return [declared]
    if isinstance(declared, list) and all(isinstance(token, int) for token in declared):
        return list(declared)
    eos = _special_tokens(config).get("eos_token")
    token = tokenizer.token_to_id(eos) if eos is not None else None
    return [] if token is None else [token]
