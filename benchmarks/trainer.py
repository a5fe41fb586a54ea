"""Seconds of one optimizer step on a recorded batch, by the trainer's own learner.

The batch is recorded here: the incident policy plays P tasks G times each. Rewards are set here so that no
group ties (a tied group trains nothing).
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Final

import torch
from examples.incident.recipe import RECIPE
from examples.incident.rollout import Episode, Limits, play
from examples.incident.world import draw_incident
from transformers import AutoModelForCausalLM

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.stacks import MODEL, POLICY_DIR
from chat_format import ChatFormat
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from identities.entities import trajectory_id

THREADS: Final = (1, 2)


async def measure(options: Options) -> list[Figure]:
    """The recipe's batch with each number of threads that this machine has."""
    prompts = options.sized(RECIPE.training.prompts_per_step, 4)
    groups = await asyncio.to_thread(record, prompts)
    tokens = sum(len(rollout.rows[0].token_ids) for group in groups for rollout in group.rollouts)
    figures = []
    for threads in [count for count in THREADS if count <= (os.cpu_count() or 1)]:
        seconds = await _steps(groups, threads, options.repeats(5))
        name = f"trainer step, {prompts} × {RECIPE.run.group_size} rollouts, {threads} thread(s)"
        rate = tokens / sorted(seconds)[len(seconds) // 2]
        figures.append(Figure(name, "s", seconds, note=f"{tokens:,} tokens, {rate:,.0f} tokens/s"))
    return figures


async def _steps(groups: Sequence[BatchGroup], threads: int, repeats: int) -> tuple[float, ...]:
    spec = TrainingSpec(
        "run-benchmark",
        MODEL,
        RECIPE.run.group_size,
        prompts_per_step=len(groups),
        learning_rate=RECIPE.training.learning_rate,
    )
    thread = LearnerThread(LearnerOptions(num_threads=threads))
    learner = TorchLearner(thread)
    try:
        await learner.begin(spec, POLICY_DIR)
        seconds = []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            numbers = await learner.step(groups)
            seconds.append(time.perf_counter() - began)
            assert numbers.applied
        return tuple(seconds[1:])
    finally:
        await learner.close()
        thread.close()


def record(prompts: int) -> list[BatchGroup]:
    """Groups of the incident policy's own rollouts; every second member of a group earned the reward."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    limits = Limits(RECIPE.run.sampling.max_turns, RECIPE.run.sampling.max_tokens_per_turn)
    group = range(RECIPE.run.group_size)
    incidents = [draw_incident("train", seed) for seed in range(prompts) for _ in group]
    chat = ChatFormat.load(POLICY_DIR)
    episodes = play(model, chat, incidents, limits, torch.Generator().manual_seed(1))
    size = RECIPE.run.group_size
    return [_group(number, episodes[number * size : (number + 1) * size]) for number in range(prompts)]


def _group(number: int, episodes: Sequence[Episode]) -> BatchGroup:
    rollouts = tuple(_tokens(trajectory_id(f"{number}-{at}"), episode) for at, episode in enumerate(episodes))
    rewards = tuple(float(at % 2) for at in range(len(episodes)))
    return BatchGroup(f"run-benchmark-g{number:05d}", rollouts, rewards)


def _tokens(name: str, episode: Episode) -> EpisodeTokens:
    """As the trainer reads them from a body; a row begins a new turn where sampling begins again."""
    turns, turn = [], 0
    for before, now in zip([False, *episode.sampled], episode.sampled, strict=False):
        turn += before and not now
        turns.append(turn)
    row = TokenRow.of(episode.token_ids, episode.sampled, episode.logprobs, turns)
    return EpisodeTokens(name, (row.trimmed(),), 1.0, 0, 0, 0)
