"""A policy's folder small enough to learn from in seconds, and episodes whose outcome their text shows."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks.study.small_policy import write_small_policy

from reward_models import EpisodeConversation, GradedConversation

COLOURS = ("red", "blue", "green", "amber")
MAX_LENGTH = 128


def write_policy(folder: Path, seed: int = 0) -> Path:
    """A Qwen3 of random weights, in the format of the demo's policy."""
    texts = [
        text for one in episodes(20, seed=9) for text in (m["content"] for m in one.conversation.messages)
    ]
    torch.set_num_threads(1)  # other workers use the other core
    return write_small_policy(folder, texts, max_length=MAX_LENGTH, seed=seed)


def episodes(num_tasks: int, *, attempts: int = 4, seed: int = 0) -> list[GradedConversation]:
    """The policy says what the tool found, and the door opens for red alone."""
    rng, found = random.Random(seed), list[GradedConversation]()
    for task in range(num_tasks):
        for attempt in range(attempts):
            colour = rng.choice(COLOURS)
            found.append(graded(f"task-{task}", f"{task}-{attempt}", colour, colour == "red", door=task))
    return found


def graded(task: str, name: str, colour: str, success: bool, door: int = 0) -> GradedConversation:
    """One episode that says a colour."""
    messages = [
        {"role": "user", "content": f"which colour opens door {door % 9}"},
        {"role": "assistant", "content": f"the colour is {colour}"},
    ]
    return GradedConversation(EpisodeConversation(name, messages), task, success)


def shuffled(given: Sequence[GradedConversation], seed: int = 1) -> list[GradedConversation]:
    """The same episodes, whose outcomes belong to others."""
    outcomes = [one.success for one in given]
    random.Random(seed).shuffle(outcomes)
    pairs = zip(given, outcomes, strict=True)
    return [GradedConversation(one.conversation, one.task, outcome) for one, outcome in pairs]
