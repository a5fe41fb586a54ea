"""An outcome reward model: a transformer with a scalar head that says how likely an episode succeeded.

The class is transformers' own for sequence classification of the policy's family, loaded from the policy's
folder: the transformer begins with the policy's weights, the head with small random ones. It reads the whole
conversation once and is asked at its last token.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from chat_format import ChatFormat, InvalidMessages, InvalidModelDir
from reward_models.conversations import EpisodeConversation
from reward_models.errors import RewardModelRefused
from reward_models.folder import RewardModelFacts, read_facts

_AGAIN: Final = "put back its files, or train it again"
_SHOWN: Final = 3
SCORED_TOKENS: Final = 16_384
"""Of one forward pass, padding included."""
_LOADING: Final = threading.Lock()
"""from_pretrained switches process-wide defaults while it builds the module."""


class OutcomeRewardModel:
    """Scores episodes. max_tokens: of the longest that it reads. tasks: digests of those that it learned
    from. Keeps no state between calls."""

    def __init__(self, module: Any, chat: ChatFormat, facts: RewardModelFacts, name: str) -> None:
        self.module, self.chat, self.facts, self.name = module, chat, facts, name

    @classmethod
    def load(cls, folder: Path, *, device: str | None = None) -> OutcomeRewardModel:
        """Raises RewardModelRefused for a folder that is no reward model, or cannot be loaded, or whose
        weights are not all there, or no numbers."""
        facts = read_facts(folder)
        chat = load_format(folder)
        module = load_module(folder, device=device, has_head=True)
        _check_sizes(module, chat, folder)
        return cls(module, chat, facts, str(folder))

    def why_unreadable(self, one: EpisodeConversation) -> str:
        """Which episode, and why `score` would refuse it: too long, or nothing that the chat template writes;
        "" where it reads it."""
        try:
            token_ids(self.chat, one, self.facts.max_tokens, self.name)
        except RewardModelRefused as error:
            return error.message
        return ""

    def score(self, conversations: Sequence[EpisodeConversation]) -> list[float]:
        """The chance that each succeeded, from 0 to 1, as the model sees it. Raises RewardModelRefused for
        one that is too long, that its chat template cannot write, or to which it gives no finite number."""
        rows = [token_ids(self.chat, one, self.facts.max_tokens, self.name) for one in conversations]
        scores = [0.0] * len(rows)
        with torch.inference_mode():
            for batch in batches(rows, range(len(rows)), SCORED_TOKENS):
                logits = logits_of(self.module, [rows[at] for at in batch])
                self._require_numbers([conversations[at] for at in batch], logits)
                for at, chance in zip(batch, torch.sigmoid(logits).tolist(), strict=True):
                    scores[at] = chance
        return scores

    def _require_numbers(self, batch: Sequence[EpisodeConversation], logits: Tensor) -> None:
        """Finite weights may overflow all the same; the chance of an infinite number would be 0 or 1."""
        for one, value in zip(batch, logits.tolist(), strict=True):
            if not math.isfinite(value):
                raise RewardModelRefused(
                    f"{self.name} gives {one.name} {value} in place of log-odds: its weights are too large, "
                    "as after training that diverged",
                    "put back its files, or train it again with a smaller --learning-rate",
                )


def load_module(folder: Path, *, device: str | None = None, has_head: bool = False) -> Any:
    """The classifier of a policy's or a reward model's folder, to evaluate. has_head: a reward model's, of
    which all weights must be there. No code of the folder runs: neither modules of its own nor pickled
    weights. Raises RewardModelRefused."""
    with _quiet():
        try:
            module, loading = AutoModelForSequenceClassification.from_pretrained(
                folder,
                num_labels=1,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RewardModelRefused(
                f"{folder} cannot be loaded as a sequence classifier: {why:.300}",
                "give the folder of a policy whose family transformers has such a class for, with "
                "safetensors",
            ) from error
    if has_head and loading["missing_keys"]:
        lacking = ", ".join(sorted(loading["missing_keys"])[:_SHOWN])
        raise RewardModelRefused(f"{folder} lacks weights ({lacking}), whose place chance would take", _AGAIN)
    broken = [name for name, one in module.named_parameters() if not bool(torch.isfinite(one).all())]
    if broken:
        shown = ", ".join(broken[:_SHOWN])
        raise RewardModelRefused(f"{folder} has weights that are no finite numbers: {shown}", _AGAIN)
    text = module.config.get_text_config()
    if text.pad_token_id is None:  # the last token is found by it
        text.pad_token_id = 0 if text.eos_token_id != 0 else 1
    return module.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def _check_sizes(module: Any, chat: ChatFormat, folder: Path) -> None:
    """Raises RewardModelRefused for a tokenizer with tokens that the weights do not have."""
    num_rows = module.get_input_embeddings().weight.shape[0]
    if chat.vocab_size > num_rows:
        raise RewardModelRefused(
            f"{folder} has a tokenizer of {chat.vocab_size} tokens, and weights of {num_rows}", _AGAIN
        )


def load_format(folder: Path) -> ChatFormat:
    """Tokenizer and chat template. Raises RewardModelRefused."""
    try:
        return ChatFormat.load(folder)
    except InvalidModelDir as error:
        raise RewardModelRefused(str(error), "give the whole folder of a policy") from error


def token_ids(chat: ChatFormat, one: EpisodeConversation, max_tokens: int, reader: str) -> list[int]:
    """What the model reads of a conversation. Raises RewardModelRefused."""
    try:
        ids = chat.render(one.messages, one.tools, add_generation_prompt=False)
    except InvalidMessages as error:
        raise RewardModelRefused(f"{one.name} is nothing that {reader} reads: {error}") from error
    if len(ids) > max_tokens:
        raise RewardModelRefused(
            f"{one.name} has {len(ids):,} tokens, and {reader} reads at most {max_tokens:,}",
            "play with a smaller --max-tokens-per-episode, or train a reward model that reads more",
        )
    return ids


def batches(rows: Sequence[Sequence[int]], order: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, so that little is padded; each at least once, whatever its length."""
    batch: list[int] = []
    for at in sorted(order, key=lambda at: len(rows[at])):
        if batch and len(rows[at]) * (len(batch) + 1) > most_tokens:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def logits_of(module: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    """Log-odds of success, [B]."""
    pad, longest = module.config.get_text_config().pad_token_id, max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    device = module.device
    found: Tensor = module(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
    return found[:, 0].float()


@contextmanager
def _quiet() -> Iterator[None]:
    """A head that is new is no news, and no bar is drawn."""
    level = transformers_logging.get_verbosity()
    with _LOADING:
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
