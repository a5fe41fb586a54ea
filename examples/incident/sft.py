"""Supervised training of the tiny policy: encoded conversations, copying drills, one training step.

A model this small learns a decision in a few steps and to *copy a name it has never seen* in a few
hundred. Short drills and right demonstrations come first because they teach copying; see `warmstart`.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from chat_format import ChatFormat
from examples.incident.names import draw_services
from examples.incident.rollout import TOOLS
from examples.incident.world import BYSTANDER_ERRORS, UPSTREAM_ERROR
from policy_files.tiny_format import TURN_END, TURN_START

# Token ids of one conversation, and which of them the policy wrote.
Row = tuple[list[int], list[bool]]

_ERRORS = (UPSTREAM_ERROR, *BYSTANDER_ERRORS)


def encode(
    chat: ChatFormat, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = TOOLS
) -> Row:
    """A conversation as the policy sees it; what the policy wrote includes its stop tokens. tools: those of
    its environment."""
    ids = chat.render(messages, tools, add_generation_prompt=False)
    (start,), (end,), (assistant,) = (chat.encode(text) for text in (TURN_START, TURN_END, "assistant\n"))
    writing, written = False, []
    for position, token in enumerate(ids):
        written.append(writing)
        if token == end:
            writing = False
        elif token == assistant and ids[position - 1] == start:
            writing = True
    return ids, written


def drill(chat: ChatFormat, rng: random.Random, num_names: int) -> Row:
    """A few lines about train-split services, three times over in changing order: a name, or an issue."""
    names = draw_services(rng, "train", num_names)
    issues = [f"{error} #{rng.randint(1, 9)} ({name})" for error, name in zip(_ERRORS, names, strict=False)]
    items = issues if rng.random() < 0.5 else names
    lines = [line for _ in range(3) for line in rng.sample(items, len(items))]
    ids = chat.encode("\n".join(lines) + "\n")
    return ids, [True] * len(ids)


def batches(rows: Sequence[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Endless shuffled batches of rows of similar length, so that little of a batch is padding."""
    while True:
        order = rng.sample(rows, len(rows))
        found = []
        for start in range(0, len(order), size * 8):
            near = sorted(order[start : start + size * 8], key=lambda row: len(row[0]))
            found += [near[at : at + size] for at in range(0, len(near), size)]
        yield from rng.sample(found, len(found))


def collate(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, written, real: [B, T], padded on the right, where causal attention needs no mask."""
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    ids = torch.zeros(shape, dtype=torch.long)
    written, real = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for index, (row, mask) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        written[index, : len(row)] = torch.tensor(mask)
        real[index, : len(row)] = True
    return ids, written, real


def sft_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: Sequence[Row], observation_weight: float
) -> float:
    """One optimizer step on a batch; returns the mean nats per token that the policy wrote."""
    ids, written, real = collate(rows)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    nll = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    weight = (torch.where(written, 1.0, observation_weight) * real)[:, 1:]
    loss: Any = (nll * weight).sum() / weight.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(nll.detach()[written[:, 1:]].mean())
