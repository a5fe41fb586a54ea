"""Best of four by an outcome reward model, on the corridor, whose episodes are written as text.

The policy is the corridor's table of logits before training. A word stands for each action, so what an
episode says shows whether it succeeded: it must hold none of the wrong words. The reward model is the shipped
one, on a small Qwen3 of random weights; it chooses in tasks that it never saw.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.study.arms import spec_of
from benchmarks.study.corridor import Kinds, Table
from benchmarks.study.small_policy import write_small_policy
from reward_models import EpisodeConversation, GradedConversation
from reward_models.training import RewardModelOptions, train_reward_model
from upcycle.reporting.best_of import BestOfReport, best_of_report
from upcycle.reporting.episodes import EpisodeRow

KINDS: Final = Kinds(turns=(4,), actions=6, start=(2.5,))
"""Four turns, each right or a detour with .77: success of .35."""
WORDS: Final = ("left", "right", "up", "down", "jump", "wait")
"""Of the actions, in their order."""
ATTEMPTS: Final = 4
NUM_EVALUATED: Final = 100
"""Tasks on which the choice is measured."""
_READ: Final = 1024
"""Episodes that each reward model reads in its training: fewer tasks are read more often."""
_RATE: Final = 3e-3
_LENGTH: Final = 128


def measured(
    seed: int, *, num_tasks: int, shuffled: bool = False, epochs: int = 0, learning_rate: float = _RATE
) -> dict[str, float]:
    """What choosing by a reward model of so many tasks gives; 0 tasks: a choice by chance. epochs: of its
    training; 0: as many as read _READ episodes."""
    found = _report(seed, num_tasks, shuffled, epochs, learning_rate)
    within = found.within.value if found.within is not None else 0.5
    return {
        "chosen": found.chosen.value,
        "mean": found.mean.value,
        "any": found.ceiling.value,
        "gain": found.gain.value,
        "within": within,
    }


@cache
def _report(seed: int, num_tasks: int, shuffled: bool, epochs: int, learning_rate: float) -> BestOfReport:
    evaluated = _episodes(NUM_EVALUATED, f"evaluated-{seed}", 2 * seed)
    if num_tasks == 0:
        rng = random.Random(seed)
        return _chosen(evaluated, [rng.random() for _ in evaluated])
    training = _episodes(num_tasks, f"training-{seed}", 2 * seed + 1)
    if shuffled:
        outcomes = [one.success for one in training]
        random.Random(seed).shuffle(outcomes)
        pairs = zip(training, outcomes, strict=True)
        training = [GradedConversation(one.conversation, one.task, outcome) for one, outcome in pairs]
    with tempfile.TemporaryDirectory() as folder:
        base = write_small_policy(Path(folder), ["where", *WORDS], max_length=_LENGTH, seed=seed)
        options = RewardModelOptions(
            learning_rate=learning_rate,
            epochs=epochs or max(1, _READ // (ATTEMPTS * num_tasks)),
            kept_apart=0.05,
            seed=seed,
        )
        model = train_reward_model(base, training, options).model
    return _chosen(evaluated, model.score([one.conversation for one in evaluated]))


def _episodes(num_tasks: int, name: str, seed: int) -> list[GradedConversation]:
    """Four attempts at each task."""
    table, found = Table(KINDS, spec_of(), seed), list[GradedConversation]()
    for task in range(num_tasks):
        group = table.play(0)
        for attempt in range(ATTEMPTS):
            said = [WORDS[action] for action in group.actions[attempt]]
            read = EpisodeConversation(f"{task}/{attempt}", _messages(said))
            found.append(GradedConversation(read, f"{name}-{task}", group.successes[attempt]))
    return found


def _messages(said: Sequence[str]) -> list[dict[str, str]]:
    messages = []
    for word in said:
        messages += [{"role": "user", "content": "where"}, {"role": "assistant", "content": word}]
    return messages


def _chosen(evaluated: Sequence[GradedConversation], scores: Sequence[float]) -> BestOfReport:
    rows = [
        EpisodeRow(one.task, "corridor", one.conversation.name, "", float(one.success), one.success)
        for one in evaluated
    ]
    by_id = {one.conversation.name: score for one, score in zip(evaluated, scores, strict=True)}
    return best_of_report(rows, by_id, num_attempts=ATTEMPTS, chosen_by="orm:study")
