"""Trains an outcome reward model on graded episodes, and measures it on tasks that it never saw."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from reward_models.conversations import GradedConversation
from reward_models.errors import RewardModelRefused
from reward_models.folder import FORMAT_FILES, RewardModelFacts, tokenizer_digest, write_facts
from reward_models.model import OutcomeRewardModel, load_format, load_module, logits_of, token_ids
from upcycle.statistics.intervals import Estimate
from upcycle.statistics.ranking import (
    ScoreCalibration,
    ScoredOutcome,
    auc_estimate,
    auc_within_tasks,
    calibration_of,
)
from upcycle.wording import amount

_WARM_UP: Final = 0.1
"""Share of the steps in which the rate rises."""
_POOL: Final = 8
"""Batches whose episodes are sorted by length together."""
_MAX_NORM: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelOptions:
    """epochs: passes over the episodes. batch: episodes of a step. kept_apart: share of the tasks that only
    measure. max_tokens: of the longest episode; None: as many as the policy's context has."""

    epochs: int = 3
    batch: int = 16
    learning_rate: float = 1e-4
    kept_apart: float = 0.2
    max_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise RewardModelRefused(f"--{name} is {getattr(self, name)}", "give at least 1")
        if not self.learning_rate > 0:
            raise RewardModelRefused(f"--learning-rate is {self.learning_rate:g}", "give a rate above 0")
        if not 0 < self.kept_apart < 1:
            raise RewardModelRefused(
                f"--kept-apart is {self.kept_apart:g}",
                "give a share between 0 and 1: some tasks train, the others measure",
            )


@dataclass(frozen=True, slots=True)
class RewardModelMeasured:
    """On the tasks that were kept apart. auc, within: None where there are no two outcomes to tell apart."""

    num_tasks: int
    num_episodes: int
    success_rate: float
    auc: Estimate | None
    within: Estimate | None
    calibration: ScoreCalibration


@dataclass(frozen=True, slots=True)
class TrainedRewardModel:
    """loss: mean of the last epoch, nats. unread: why each episode that it cannot read was left out."""

    model: OutcomeRewardModel
    unread: tuple[str, ...]
    num_tasks: int
    num_episodes: int
    num_steps: int
    loss: float
    measured: RewardModelMeasured


OnStep = Callable[[int, int, float], None]
"""Number of a step, how many there are, its loss."""


def train_reward_model(
    base: Path,
    episodes: Sequence[GradedConversation],
    options: RewardModelOptions = RewardModelOptions(),
    *,
    on_step: OnStep = lambda step, of, loss: None,
) -> TrainedRewardModel:
    """Episodes that are too long are left out. Raises RewardModelRefused where there is nothing to learn
    from."""
    torch.manual_seed(options.seed)  # of the head
    model = _untrained(base, options.max_tokens)
    reasons = [model.why_unreadable(one.conversation) for one in episodes]
    unread = tuple(reason for reason in reasons if reason)
    read = [one for one, reason in zip(episodes, reasons, strict=True) if not reason]
    if not read:
        raise RewardModelRefused(unread[0] if unread else "no episode", "give --max-tokens, or others")
    training, apart = split_by_task(read, options.kept_apart, options.seed)
    _check_outcomes(training)
    model.facts = replace(model.facts, tasks=tuple(sorted({one.task for one in training})))
    num_steps, loss = _fit(model, training, options, on_step)
    measured = measured_on(apart, model.score([one.conversation for one in apart]))
    num_tasks = len(model.facts.tasks)
    return TrainedRewardModel(model, unread, num_tasks, len(training), num_steps, loss, measured)


def _untrained(base: Path, max_tokens: int | None) -> OutcomeRewardModel:
    module, chat = load_module(base), load_format(base)
    limit = _max_tokens(module, max_tokens, base)
    facts = RewardModelFacts(base.resolve().name, limit, tokenizer_digest(base), ())
    return OutcomeRewardModel(module, chat, facts, "the new reward model")


def split_by_task(
    episodes: Sequence[GradedConversation], share: float, seed: int
) -> tuple[list[GradedConversation], list[GradedConversation]]:
    """(what trains, what measures): no task is on both sides. Equal tasks and seed give equal sides. Raises
    RewardModelRefused for fewer than two tasks."""
    tasks = sorted(
        {one.task for one in episodes}, key=lambda task: hashlib.sha256(f"{seed}/{task}".encode()).digest()
    )
    if len(tasks) < 2:
        raise RewardModelRefused(
            f"{amount(len(episodes), 'episode')} of {amount(len(tasks), 'task')}: some train, others measure",
            "give episodes of more tasks",
        )
    apart = frozenset(tasks[: min(len(tasks) - 1, max(1, round(share * len(tasks))))])
    return [one for one in episodes if one.task not in apart], [one for one in episodes if one.task in apart]


def measured_on(apart: Sequence[GradedConversation], scores: Sequence[float]) -> RewardModelMeasured:
    """What scores of episodes are worth."""
    scored = [ScoredOutcome(one.task, score, one.success) for one, score in zip(apart, scores, strict=True)]
    return RewardModelMeasured(
        num_tasks=len({one.task for one in apart}),
        num_episodes=len(apart),
        success_rate=sum(one.success for one in apart) / len(apart),
        auc=auc_estimate(scored),
        within=auc_within_tasks(scored),
        calibration=calibration_of(scored),
    )


def save_reward_model(model: OutcomeRewardModel, base: Path, folder: Path) -> None:
    """Write it whole or not at all. Raises RewardModelRefused for a folder that is there."""
    if folder.exists():
        raise RewardModelRefused(f"{folder} is there already", "name a new folder")
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        model.module.save_pretrained(draft)
        for name in FORMAT_FILES:
            if (base / name).is_file():
                shutil.copyfile(base / name, draft / name)
        write_facts(draft, model.facts)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_outcomes(training: Sequence[GradedConversation]) -> None:
    num_solved = sum(one.success for one in training)
    if num_solved in (0, len(training)):
        outcome = "a success" if num_solved else "a failure"
        raise RewardModelRefused(
            f"each of the {len(training)} episodes that would train is {outcome}: nothing tells them apart",
            "give episodes of tasks that are solved now and then",
        )


def _max_tokens(module: Any, asked: int | None, base: Path) -> int:
    context = int(getattr(module.config.get_text_config(), "max_position_embeddings", 0) or 1 << 20)
    if asked is None:
        return context
    if not 1 <= asked <= context:
        raise RewardModelRefused(f"--max-tokens is {asked}", f"{base} reads 1 to {context:,} tokens")
    return asked


def _fit(
    model: OutcomeRewardModel,
    training: Sequence[GradedConversation],
    options: RewardModelOptions,
    on_step: OnStep,
) -> tuple[int, float]:
    """(steps, mean loss of the last epoch)."""
    module, limit = model.module, model.facts.max_tokens
    rows = [token_ids(model.chat, one.conversation, limit, model.name) for one in training]
    labels = torch.tensor([float(one.success) for one in training], device=module.device)
    steps = -(-len(rows) // options.batch) * options.epochs
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, steps))
    rng, losses = random.Random(options.seed), list[float]()  # noqa: S311 - an order, not a secret
    module.train()
    for _ in range(options.epochs):
        losses = []
        for batch in _epoch(rows, options.batch, rng):
            loss = binary_cross_entropy_with_logits(
                logits_of(module, [rows[at] for at in batch]), labels[batch]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(module.parameters(), _MAX_NORM)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            on_step(schedule.last_epoch, steps, losses[-1])
    module.eval()
    return steps, sum(losses) / len(losses)


def _epoch(rows: Sequence[Sequence[int]], size: int, rng: random.Random) -> Iterator[list[int]]:
    """Each row once, shuffled; rows of like length together within a few batches."""
    order = list(range(len(rows)))
    rng.shuffle(order)
    found: list[list[int]] = []
    for begin in range(0, len(order), size * _POOL):
        pool = sorted(order[begin : begin + size * _POOL], key=lambda at: len(rows[at]))
        found += [pool[at : at + size] for at in range(0, len(pool), size)]
    rng.shuffle(found)
    yield from found


def _factor(step: int, steps: int) -> float:
    """Of the rate: up over the first tenth, then down to 0 in a line."""
    warm = max(1, round(_WARM_UP * steps))
    return (step + 1) / (warm + 1) if step < warm else max(0.0, (steps - step) / max(1, steps - warm))
