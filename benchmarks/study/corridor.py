"""A task small enough for five seeds in seconds: at each turn one of a few actions, right, wrong or a detour.

A policy is a table of logits, one row per kind of task and turn. Advantages, losses, schedules and signals
are the shipped ones, so a study says what the option does and not what a copy of it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grpo_math.advantages import advantage_function
from grpo_math.aggregation import StepTotals
from grpo_math.objective import Objective, build_objective
from grpo_math.tokens import TrainedTokens
from grpo_math.turn_credit import credit_by_turn, turn_returns
from grpo_trainer.domain.schedules import Schedule
from grpo_trainer.domain.spec import TrainingSpec

RIGHT, DETOUR = 0, 1
"""Actions 2 and above are wrong: the episode goes on and fails."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of tasks. turns: of each kind; actions: at each turn; start: logit of the right action before
    training, of each kind."""

    turns: Sequence[int]
    actions: int = 4
    start: Sequence[float] = ()
    detour_cost: float = 0.0
    """Taken from the reward of a success, per detour."""

    @property
    def longest(self) -> int:
        return max(self.turns)


@dataclass(slots=True)
class Group:
    """Episodes of one task. actions, logprobs [G, T]: what the sampler took, and its log-probabilities."""

    kind: int
    actions: np.ndarray
    logprobs: np.ndarray
    rewards: list[float]
    successes: list[bool]
    turn_rewards: list[tuple[float, ...]]
    hint: float = 0.0
    """Guidance in its prompt, with which it trains."""


class Table:
    """A policy of the corridor with its optimizer."""

    def __init__(self, kinds: Kinds, spec: TrainingSpec, seed: int) -> None:
        self.kinds, self.spec = kinds, spec
        logits = torch.zeros(len(kinds.turns), kinds.longest, kinds.actions, dtype=torch.float64)
        for kind, ahead in enumerate(kinds.start):
            logits[kind, :, RIGHT] = ahead
        self.logits = torch.nn.Parameter(logits)
        rate, betas = spec.peak_rate, (spec.adam_beta1, spec.adam_beta2)
        self.optimizer = torch.optim.AdamW([self.logits], lr=rate, betas=betas, weight_decay=0.0)
        self.schedule: Schedule = spec.schedule
        aggregation = spec.aggregation or ("turn_mean" if spec.advantage == "m_grpo" else "token_mean")
        self.objective: Objective = build_objective(spec.loss, aggregation=aggregation)
        self.random = np.random.default_rng(seed)
        self.seed = seed
        self.done = self.drawn = self.guided = 0

    def play(self, kind: int, *, hint: float = 0.0) -> Group:
        """One group. hint: added to the logits of the right actions, as guidance in the prompt would."""
        turns = self.kinds.turns[kind]
        logits = self.logits.detach()[kind, :turns].clone()
        logits[:, RIGHT] += hint
        logprobs = torch.log_softmax(logits, dim=-1).numpy()
        noise = self.random.gumbel(size=(self.spec.group_size, turns, self.kinds.actions))
        actions = (logprobs[None] + noise).argmax(-1)
        sampled = np.take_along_axis(np.broadcast_to(logprobs, noise.shape), actions[..., None], -1)[..., 0]
        success = (actions <= DETOUR).all(1)
        cost = self.kinds.detour_cost * (actions == DETOUR).sum(1)
        rewards = np.where(success, np.maximum(1.0 - cost, 0.0), 0.0)
        right = [tuple(map(float, member == RIGHT)) for member in actions]
        return Group(kind, actions, sampled, rewards.tolist(), success.tolist(), right, hint)

    def success(self) -> float:
        """Exact mean success over the kinds."""
        fine = torch.softmax(self.logits.detach(), -1)[..., : DETOUR + 1].sum(-1)
        return float(np.mean([fine[kind, :turns].prod() for kind, turns in enumerate(self.kinds.turns)]))

    def reward(self) -> float:
        """Exact mean reward over the kinds, where no detour takes all of it."""
        chances = torch.softmax(self.logits.detach(), -1)
        found = []
        for kind, turns in enumerate(self.kinds.turns):
            fine = chances[kind, :turns, : DETOUR + 1].sum(-1)
            detours = (chances[kind, :turns, DETOUR] / fine).sum()
            found.append(float(fine.prod() * (1 - self.kinds.detour_cost * detours)))
        return float(np.mean(found))

    def learn(self, groups: Sequence[Group]) -> None:
        """One optimizer step. Guided groups train with the guidance in their prompt."""
        rate = self.spec.peak_rate * self.schedule.factor(self.done)
        self.done += 1
        credits = self._credits(groups)
        tokens = self._tokens(groups, credits)
        rows = sum(len(group.rewards) for group in groups)
        totals = StepTotals(tokens.advantages.shape[0], rows, num_trajectories=float(rows))
        self._update(self.objective(tokens, totals), rate)

    def sft(self, steps: int, per_kind: int) -> None:
        """SFT on right actions: `per_kind` demonstrations of each kind a step."""
        for _ in range(steps):
            losses = [
                -torch.log_softmax(self.logits[kind, :turns], -1)[:, RIGHT].mean() * per_kind
                for kind, turns in enumerate(self.kinds.turns)
            ]
            self._update(torch.stack(losses).sum() / (per_kind * len(losses)), self.spec.peak_rate)

    def _update(self, loss: Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([self.logits], self.spec.max_grad_norm)
        self.optimizer.step()

    def _credits(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        advantage = advantage_function(self.spec.advantage)
        if self.spec.turn_credit == "turn":
            return credit_by_turn([self._returns(group) for group in groups], advantage)
        rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
        flat = advantage(rewards).tolist()
        return [
            [[value] * group.actions.shape[1] for value in of_group]
            for group, of_group in zip(groups, flat, strict=True)
        ]

    def _returns(self, group: Group) -> list[list[float]]:
        spec, turns = self.spec, group.actions.shape[1]
        return [
            turn_returns(reward, earned, turns, discount=spec.turn_discount, weight=spec.turn_reward_weight)
            for reward, earned in zip(group.rewards, group.turn_rewards, strict=True)
        ]

    def _tokens(self, groups: Sequence[Group], credits: list[list[list[float]]]) -> TrainedTokens:
        now, before, advantages, rows, turns = _Parts(), [], [], [], []
        row = 0
        for group, of_group in zip(groups, credits, strict=True):
            length = group.actions.shape[1]
            shift = torch.zeros(self.kinds.actions, dtype=torch.float64)
            shift[RIGHT] = group.hint
            logprobs = torch.log_softmax(self.logits[group.kind, :length] + shift, -1)
            chosen = torch.from_numpy(group.actions)
            at = torch.arange(length).expand_as(chosen)
            now.add(logprobs[at.flatten(), chosen.flatten()])
            before += group.logprobs.flatten().tolist()
            advantages += [value for member in of_group for value in member]
            rows += [row + member for member in range(len(group.rewards)) for _ in range(length)]
            turns += list(range(length)) * len(group.rewards)
            row += len(group.rewards)
        return TrainedTokens(
            trainer_logprobs=torch.cat(now.parts),
            sampler_logprobs=torch.tensor(before, dtype=torch.float64),
            advantages=torch.tensor(advantages, dtype=torch.float64),
            row_of_token=torch.tensor(rows),
            num_rows=row,
            turn_of_token=torch.tensor(turns),
        )


@dataclass(slots=True)
class _Parts:
    parts: list[Tensor] = field(default_factory=list)

    def add(self, part: Tensor) -> None:
        self.parts.append(part)
