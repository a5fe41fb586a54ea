"""A byte-level policy for the toy tasks: cloning its start, and playing episodes.

`python -m tests.services.grpo_trainer.toy_policy hop OUT.safetensors` reproduces a committed start.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tests.services.grpo_trainer.toy_tasks import STOP, TASKS, Task
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.protocol import BatchGroup

VOCAB: Final = 260
PAD: Final = 256


@dataclass(frozen=True, slots=True)
class Size:
    """Width and depth, and how long cloning takes to form the start: steps of `batch` demonstrations."""

    hidden: int
    layers: int
    clone_steps: int
    clone_batch: int


SMALL: Final = Size(64, 3, 600, 64)
"""127,776 parameters."""
LARGE: Final = Size(128, 4, 250, 128)
"""624,512 parameters."""
SIZES: Final = {"hop": SMALL, "retry": LARGE, "route": SMALL}
"""Of the committed starts."""


def config(size: Size) -> Qwen3Config:
    """A Qwen3 over bytes."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=size.hidden // 4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=None,
    )


def plain_model(size: Size, seed: int = 0) -> Any:
    """The policy behind transformers' own attention, for playing and cloning."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config(size))


@dataclass(slots=True)
class Played:
    """One episode: bytes, which of them were sampled, and with which logprob."""

    task: Task
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)


class _Row:
    """An episode that advances by one byte per forward pass: forced while there is something to read."""

    def __init__(self, task: Task) -> None:
        self.played = Played(task)
        self._forced = deque(task.prompt().encode())
        self._line = bytearray()
        self._turn = 0

    def advance(self, token: int, logprob: float) -> int:
        played = self.played
        if played.task.done:
            return PAD
        sampled = not self._forced
        token = token if sampled else self._forced.popleft()
        played.tokens.append(token)
        played.sampled.append(sampled)
        played.logprobs.append(logprob if sampled else 0.0)
        played.turns.append(self._turn)
        if sampled:
            self._line.append(token if token < PAD else ord("?"))
            if token == ord(STOP) or len(self._line) >= played.task.max_action:
                self._forced.extend(played.task.step(self._line.decode("latin1")).encode())
                self._line.clear()
                self._turn += 1
        return token


@torch.no_grad()
def play(
    model: Any, tasks: Sequence[Task], generator: torch.Generator, *, greedy: bool = False
) -> list[Played]:
    """Play all tasks in lock-step at temperature 1, or greedily."""
    model.eval()
    rows = [_Row(task) for task in tasks]
    played = [row.played for row in rows]
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([[row.advance(PAD, 0.0)] for row in rows])
    while rows:
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1]
        log_p = torch.log_softmax(logits.float(), -1)
        chosen = log_p.argmax(-1, True) if greedy else torch.multinomial(log_p.exp(), 1, generator=generator)
        drawn, logprobs = chosen[:, 0].tolist(), log_p.gather(1, chosen)[:, 0].tolist()
        ids = torch.tensor([[row.advance(*one)] for row, *one in zip(rows, drawn, logprobs, strict=True)])
        kept = [index for index, row in enumerate(rows) if not row.played.task.done]
        if len(kept) <= 0.75 * len(rows):  # selecting copies the cache, so finished rows leave in bulk
            cache.batch_select_indices(torch.tensor(kept, dtype=torch.int64))
            rows, ids = [rows[index] for index in kept], ids[kept]
    return played


def success(model: Any, task: str, *, count: int = 512, greedy: bool = False) -> float:
    """Share of solved tasks, on seeds that training never draws."""
    tasks = [TASKS[task](2_000_000_000 + index) for index in range(count)]
    played = play(model, tasks, torch.Generator().manual_seed(5), greedy=greedy)
    return sum(one.task.reward for one in played) / count


def groups_of(played: Sequence[Played], group_size: int) -> list[BatchGroup]:
    """Episodes in groups of one task each, without groups that have nothing to compare."""
    groups = []
    for first in range(0, len(played), group_size):
        members = played[first : first + group_size]
        if len({one.task.reward for one in members}) > 1:
            rollouts = tuple(_tokens(one, f"{first}/{index}") for index, one in enumerate(members))
            rewards = tuple(one.task.reward for one in members)
            groups.append(BatchGroup(f"g{first:06d}", rollouts, rewards))
    return groups


def _tokens(played: Played, name: str) -> EpisodeTokens:
    row = TokenRow.of(played.tokens, played.sampled, played.logprobs, played.turns)
    return EpisodeTokens(name, (row,), 1.0, 0, 0, 0)


def clone(task: str, size: Size, *, seed: int = 0) -> Any:
    """Behaviour cloning of the imperfect demonstrations."""
    model, rng, steps = plain_model(size, seed), random.Random(seed + 1), size.clone_steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.95))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20) * max(0.05, 1 - step / steps)
        ids, mask = _demonstrations(task, rng, size.clone_batch)
        log_p = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[:, :-1], -1)
        picked = log_p.gather(-1, ids[:, 1:, None])[..., 0]
        loss = -(picked * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def _demonstrations(task: str, rng: random.Random, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, masks = [], []
    for _ in range(count):
        one = TASKS[task](rng.randrange(1 << 30))
        ids = list(one.prompt().encode())
        mask = [0] * len(ids)
        for line in one.demo(rng):
            ids += line.encode()
            mask += [1] * len(line)
            seen = one.step(line).encode()
            ids += seen
            mask += [0] * len(seen)
        rows.append(ids)
        masks.append(mask)
    width = max(map(len, rows))
    padded = torch.tensor([ids + [PAD] * (width - len(ids)) for ids in rows])
    return padded, torch.tensor([mask + [0] * (width - len(mask)) for mask in masks], dtype=torch.float32)


def save_start(model: Any, path: Path) -> None:
    """Weights in half precision: the start of a test."""
    state = {name: value.half() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, path)


def load_start(path: Path) -> Any:
    """The model that `save_start` kept, in float32."""
    state = {name: value.float() for name, value in load_file(path).items()}
    width = state["model.embed_tokens.weight"].shape[1]
    model = plain_model(next(size for size in (SMALL, LARGE) if size.hidden == width))
    model.load_state_dict(state, strict=False)
    return model


def main() -> None:
    """Clone, say how good the start is, and save it."""
    task, path = sys.argv[1], Path(sys.argv[2])
    model = clone(task, SIZES[task])
    save_start(model, path)
    print(f"{task}: sampled {success(model, task):.3f}, greedy {success(model, task, greedy=True):.3f}")


if __name__ == "__main__":
    main()
