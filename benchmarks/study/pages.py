"""A task with more to read than a context holds, for the study of context compression.

Each turn reads one page. The first page shows a key, and the last turn must say it. The shipped compression
(`upcycle.harness.context`) decides what a turn still sees, on messages of real length; a context that was
compressed is a training row of its own, as in the trainer. With thinking, the turn that reads the first page
also says what it read, or nothing: what the policy said stays when the page is left out.

The policy is a table of logits, one row for each thing that a turn can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from benchmarks.study.arms import Measures, ran, spec_of
from benchmarks.study.corridor import RIGHT, Group, Kinds, Table
from benchmarks.study.policies import TableOfLogits
from grpo_math.tokens import TrainedTokens
from grpo_trainer.domain.spec import TrainingSpec
from upcycle.harness.context import COMPRESS, compressed

KEYS: Final = 4
"""Values of the key, and actions of a turn."""
UNKNOWN: Final = KEYS
"""What a turn sees that sees neither the first page nor a thought about it; a thought that says nothing."""
SHORT, LONG = 0, 1
KINDS: Final = Kinds(turns=(3, 8), actions=KEYS, start=(1.0, 1.0))
"""Three pages fit into the context, eight do not."""
_START: Final = 1.0
_PAGE_CHARS: Final = 400
_BUDGET_CHARS: Final = 1300
_TURN_CHARS: Final = 50
"""Room that a turn needs, its thought included."""
_NEVER: Final = -30.0
"""Logit of what cannot be chosen."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a turn is sampled in. number: of the context within the episode."""

    sees_key: bool
    number: int


def turn_contexts(turns: int, context: str, *, thinks: bool) -> list[TurnContext]:
    """Of each turn that an episode gets to; fewer than `turns` where the context is full before."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "Read all pages, then say the key." * 3}]
    found: list[TurnContext] = []
    number = 0
    for turn in range(turns):
        if not _fits(messages):
            shorter = compressed(messages) if context == COMPRESS else None
            if shorter is None or not _fits(shorter):
                break
            messages, number = shorter, number + 1
        sees = any(one["content"].startswith("key") for one in messages if one["role"] == "tool")
        found.append(TurnContext(sees, number))
        thought = "the key is one" if thinks and turn == 1 else ""
        page = ("key" if turn == 0 else "page").ljust(_PAGE_CHARS, ".")
        messages += [{"role": "assistant", "content": f"{thought}next"}, {"role": "tool", "content": page}]
    return found


def _fits(messages: Sequence[dict[str, str]]) -> bool:
    return sum(len(one["content"]) for one in messages) + _TURN_CHARS <= _BUDGET_CHARS


@dataclass(slots=True)
class ReadGroup(Group):
    """rows [G, D]: of the table, for each decision. actions [G, D]: what was chosen there."""

    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))


class Reader(Table):
    """A policy of this task. Decisions of an episode: its turns, and with thinking the thought of turn 1."""

    def __init__(self, spec: TrainingSpec, seed: int, *, context: str, thinks: bool) -> None:
        super().__init__(KINDS, spec, seed)
        self.thinks = thinks
        self.contexts = [turn_contexts(turns, context, thinks=thinks) for turns in KINDS.turns]
        num_turns = len(KINDS.turns) * KINDS.longest * (KEYS + 1)
        table = torch.zeros(num_turns + KEYS, KEYS + 1, dtype=torch.float64)  # the last ones: thoughts
        table[:num_turns, UNKNOWN] = _NEVER
        for kind, turns in enumerate(KINDS.turns):
            for turn in range(turns - 1):
                first = self._row(kind, turn, 0)
                table[first : first + KEYS + 1, RIGHT] = _START
        self.policy = TableOfLogits(table)
        self.logits = self.policy().detach()
        self.first = self.logits.clone()
        betas = (spec.adam_beta1, spec.adam_beta2)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=spec.peak_rate, betas=betas, weight_decay=0.0
        )

    def play(self, kind: int, *, hint: float = 0.0, turns: int = 0, begins: int = 0) -> ReadGroup:
        """One group: episodes of one task, so with one key. hint, turns: this table has no use for them."""
        key, size = int(self.random.integers(KEYS)), self.spec.group_size
        logprobs = torch.log_softmax(self.logits, -1).numpy()
        thought = np.full(size, UNKNOWN)
        rows, chosen = [], []
        for turn, at in enumerate(self.contexts[kind]):
            if self.thinks and turn == 1:
                rows.append(np.full(size, self._thought_row(key)))
                thought = self._sampled(logprobs, rows[-1])
                chosen.append(thought)
            rows.append(self._row(kind, turn, np.full(size, key) if at.sees_key else thought))
            chosen.append(self._sampled(logprobs, rows[-1]))
        at_rows, actions = np.stack(rows, 1), np.stack(chosen, 1)
        turns_taken = np.delete(actions, 1, axis=1) if self.thinks else actions
        passed = (turns_taken[:, :-1] == RIGHT).all(1) & (turns_taken[:, -1] == key)
        success = passed & (len(self.contexts[kind]) == KINDS.turns[kind])
        sampled = logprobs[at_rows, actions]
        nothing: list[tuple[float, ...]] = [()] * size
        return ReadGroup(
            kind, actions, sampled, success.astype(float).tolist(), success.tolist(), nothing, rows=at_rows
        )

    def chances(self) -> tuple[float, ...]:
        """Exact success of each kind."""
        table = torch.softmax(self.logits, -1).numpy()
        return tuple(float(np.mean([self._chance(table, k, key) for key in range(KEYS)])) for k in (0, 1))

    def success(self) -> float:
        return sum(self.chances()) / len(KINDS.turns)

    def reward(self) -> float:
        return self.success()

    def drift(self) -> float:
        """Mean over all rows of the table."""
        now, first = torch.log_softmax(self.logits, -1), torch.log_softmax(self.first, -1)
        return float((now.exp() * (now - first)).sum(-1).mean())

    def sft(self, steps: int, per_kind: int) -> None:
        """SFT on right actions and right thoughts, of each key."""
        shown = [self._demonstration(kind, key) for kind in (SHORT, LONG) for key in range(KEYS)]
        for _ in range(steps):
            logits = self.policy()
            losses = [-torch.log_softmax(logits[rows], -1)[range(len(did)), did] for rows, did in shown]
            self._update(torch.cat(losses).mean(), self.spec.peak_rate)

    def _demonstration(self, kind: int, key: int) -> tuple[list[int], list[int]]:
        rows, did = [], []
        for turn, at in enumerate(self.contexts[kind]):
            if self.thinks and turn == 1:
                rows.append(self._thought_row(key))
                did.append(key)
            sees = key if at.sees_key or (self.thinks and turn > 1) else UNKNOWN
            rows.append(int(self._row(kind, turn, sees)))
            did.append(key if turn == KINDS.turns[kind] - 1 else RIGHT)
        return rows, did

    def _chance(self, table: np.ndarray, kind: int, key: int) -> float:
        contexts = self.contexts[kind]
        if len(contexts) < KINDS.turns[kind]:
            return 0.0
        thoughts = table[self._thought_row(key)] if self.thinks else np.eye(KEYS + 1)[UNKNOWN]
        total = 0.0
        for thought, likely in enumerate(thoughts):
            chance = float(likely)
            for turn, at in enumerate(contexts):
                known = thought if turn > 1 or not self.thinks else UNKNOWN
                wanted = key if turn == len(contexts) - 1 else RIGHT
                chance *= table[self._row(kind, turn, key if at.sees_key else known), wanted]
            total += chance
        return total

    def _tokens(self, groups: Sequence[Group], credits: list[list[list[float]]]) -> TrainedTokens:
        """Each context of an episode is a row, with its share of the episode's turns."""
        rows, turns, shares, taken, chosen, before = [], [], [], [], [], []
        num_rows = 0
        for group in groups:
            assert isinstance(group, ReadGroup)
            contexts = self.contexts[group.kind]
            numbers = np.array([at.number for at in contexts])
            first = np.searchsorted(numbers, numbers)  # turn that each context begins with
            of_decision = np.arange(len(contexts))
            if self.thinks:
                of_decision = np.insert(of_decision, 1, 1)
            size, width = group.actions.shape[0], int(numbers[-1]) + 1
            base = num_rows + np.arange(size)[:, None] * width
            rows.append((base + numbers[of_decision][None]).flatten())
            turns.append(np.tile((np.arange(len(contexts)) - first)[of_decision], size))
            shares.append(np.tile(np.bincount(numbers) / len(contexts), size))
            num_rows += size * width
            taken.append(group.rows.flatten())
            chosen.append(group.actions.flatten())
            before.append(group.logprobs.flatten())
        logprobs = torch.log_softmax(self.policy(), -1)[np.concatenate(taken), np.concatenate(chosen)]
        flat = [value for of_group in credits for member in of_group for value in member]
        return TrainedTokens(
            trainer_logprobs=logprobs,
            sampler_logprobs=torch.from_numpy(np.concatenate(before)),
            advantages=torch.tensor(flat, dtype=torch.float64),
            row_of_token=torch.from_numpy(np.concatenate(rows)),
            num_rows=num_rows,
            turn_of_token=torch.from_numpy(np.concatenate(turns)),
            row_shares=torch.from_numpy(np.concatenate(shares)),
        )

    def _sampled(self, logprobs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        noise = self.random.gumbel(size=(len(rows), KEYS + 1))
        found: np.ndarray = (logprobs[rows] + noise).argmax(-1)
        return found

    def _row(self, kind: int, turn: int, sees: np.ndarray | int) -> np.ndarray:
        return np.asarray((kind * KINDS.longest + turn) * (KEYS + 1) + sees)

    def _thought_row(self, key: int) -> int:
        return len(self.logits) - KEYS + key


def measured(
    seed: int, *, context: str, thinks: bool = False, sft_steps: int = 0, advantage: str = "dr_grpo"
) -> Measures:
    """One run: success of both kinds at its end, of the short and of the long one, and along it."""
    table = Reader(spec_of(advantage=advantage), seed, context=context, thinks=thinks)
    return measured_on(table, sft_steps)


def measured_on(table: Reader, sft_steps: int) -> Measures:
    """The run of a policy, after so many steps of SFT."""
    found = ran(table, lambda _: table.sft(sft_steps, per_kind=8))
    short, long = table.chances()
    return {**found, "short": short, "long": long}
