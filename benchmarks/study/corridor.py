"""A task small enough for five seeds in seconds: at each turn one of a few actions, right, wrong or a detour.

A policy is a table of logits, one row per kind of task and turn, or a small transformer. Advantages, losses,
schedules and signals are the shipped ones, so a study says what the option does and not what a copy of it
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.study.policies import SmallTransformer, TableOfLogits
from grpo_math.advantages import advantage_function
from grpo_math.aggregation import StepTotals
from grpo_math.objective import KlChoice, Objective, build_objective
from grpo_math.tokens import TrainedTokens
from grpo_math.turn_credit import credit_by_turn, turn_returns
from grpo_trainer.domain.following import following_metrics, scales
from grpo_trainer.domain.schedules import Schedule
from grpo_trainer.domain.spec import TrainingSpec
from upcycle.run_config.names import LEAVE_OUT

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
    cut_off: float = 0.0
    """Chance that a limit cuts an episode off whatever it did, as where its prompt is long: its reward is
    0."""
    most_detours: int | None = None
    """An episode with more detours is cut off, as by a limit of turns."""

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
    cut_off: Sequence[bool] = ()
    """Of each episode whether a limit ended it; empty: of none."""
    begins: int = 0
    """Turn of the kind that they begin with."""


class Table:
    """A policy of the corridor with its optimizer. transformer: instead of a table of logits."""

    def __init__(self, kinds: Kinds, spec: TrainingSpec, seed: int, *, transformer: bool = False) -> None:
        self.kinds, self.spec = kinds, spec
        logits = torch.zeros(len(kinds.turns), kinds.longest, kinds.actions, dtype=torch.float64)
        for kind, ahead in enumerate(kinds.start):
            logits[kind, :, RIGHT] = ahead
        self.policy = SmallTransformer(logits, seed) if transformer else TableOfLogits(logits)
        self.logits = self.policy().detach()
        self.first = self.logits.clone()
        rate, betas = spec.peak_rate, (spec.adam_beta1, spec.adam_beta2)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=rate, betas=betas, weight_decay=0.0)
        self.schedule: Schedule = spec.schedule
        aggregation = spec.aggregation or ("turn_mean" if spec.advantage == "m_grpo" else "token_mean")
        kl = KlChoice(spec.kl_estimator, spec.kl_placement)
        self.objective: Objective = build_objective(
            spec.loss, spec.loss_config, aggregation=aggregation, kl=kl
        )
        self.before: dict[str, float] = {}
        self.outcomes: list[bool] = []
        self.random = np.random.default_rng(seed)
        self.seed = seed
        self.done = self.drawn = self.guided = 0

    def play(self, kind: int, *, hint: float = 0.0, turns: int = 0, begins: int = 0) -> Group:
        """One group. hint: added to the logits of the right actions, as guidance in the prompt would. turns:
        a shorter task of the kind, which ends after so many of its turns; 0: the whole one. begins: what is
        left of the task from this turn on."""
        ends = turns or self.kinds.turns[kind]
        turns = ends - begins
        logits = self.logits[kind, begins:ends].clone()
        logits[:, RIGHT] += hint
        logprobs = torch.log_softmax(logits, dim=-1).numpy()
        noise = self.random.gumbel(size=(self.spec.group_size, turns, self.kinds.actions))
        actions = (logprobs[None] + noise).argmax(-1)
        sampled = np.take_along_axis(np.broadcast_to(logprobs, noise.shape), actions[..., None], -1)[..., 0]
        cut_off = self._cut_off(actions)
        success = (actions <= DETOUR).all(1) & ~cut_off
        self.outcomes += success.tolist()
        cost = self.kinds.detour_cost * (actions == DETOUR).sum(1)
        rewards = np.where(success, np.maximum(1.0 - cost, 0.0), 0.0)
        right = [tuple(map(float, member == RIGHT)) for member in actions]
        cut = cut_off.tolist()
        return Group(kind, actions, sampled, rewards.tolist(), success.tolist(), right, hint, cut, begins)

    def _cut_off(self, actions: np.ndarray) -> np.ndarray:
        """[G], which episodes a limit ends."""
        kinds = self.kinds
        ended = np.zeros(len(actions), dtype=bool)
        if kinds.cut_off:
            ended |= self.random.random(len(actions)) < kinds.cut_off
        if kinds.most_detours is not None:
            ended |= (actions == DETOUR).sum(1) > kinds.most_detours
        return ended

    def success(self) -> float:
        """Exact mean success over the kinds, of episodes that no limit cuts off by chance."""
        chances = torch.softmax(self.logits, -1)
        return float(
            np.mean([self._solved(chances[kind, :turns]) for kind, turns in enumerate(self.kinds.turns)])
        )

    def _solved(self, chances: Tensor) -> float:
        """Chance that no turn is wrong, with no more detours than the limit allows. chances: [turns,
        actions]."""
        turns, most = len(chances), self.kinds.most_detours
        by_detours = np.zeros((turns if most is None else most) + 1)
        by_detours[0] = 1.0
        for right, detour in chances[:, : DETOUR + 1].tolist():
            further = np.concatenate(([0.0], by_detours[:-1])) * detour
            by_detours = by_detours * right + further
        return float(by_detours.sum())

    def reward(self) -> float:
        """Exact mean reward over the kinds, where no detour takes all of it."""
        chances = torch.softmax(self.logits, -1)
        found = []
        for kind, turns in enumerate(self.kinds.turns):
            fine = chances[kind, :turns, : DETOUR + 1].sum(-1)
            detours = (chances[kind, :turns, DETOUR] / fine).sum()
            found.append(float(fine.prod() * (1 - self.kinds.detour_cost * detours)))
        return float(np.mean(found))

    def drift(self) -> float:
        """Exact mean divergence of the policy from the first one, nats a turn."""
        now, first = torch.log_softmax(self.logits, -1), torch.log_softmax(self.first, -1)
        of_turns = (now.exp() * (now - first)).sum(-1)
        return float(np.mean([of_turns[at, :turns].mean() for at, turns in enumerate(self.kinds.turns)]))

    def learn(self, groups: Sequence[Group]) -> None:
        """One optimizer step. Guided groups train with the guidance in their prompt."""
        chosen = scales(self.spec, self.before)
        rate = self.spec.peak_rate * self.schedule.factor(self.done) * chosen.rate
        self.done += 1
        success = float(np.mean(self.outcomes)) if self.outcomes else None
        self.before = following_metrics(self.spec, self.before, success)
        self.outcomes.clear()
        objective, kl = self.objective, self.objective.kl
        if kl is not None:
            objective = replace(objective, kl=replace(kl, coefficient=kl.coefficient * chosen.kl))
        tokens = self._tokens(groups, self._credits(groups))
        totals = StepTotals(
            tokens.advantages.shape[0],
            tokens.num_rows,
            max(group.actions.shape[1] for group in groups),
            num_trajectories=float(sum(len(self._kept(group)) for group in groups)),
        )
        self._update(objective(tokens, totals), rate)

    def sft(self, steps: int, per_kind: int) -> None:
        """SFT on right actions: `per_kind` demonstrations of each kind a step."""
        for _ in range(steps):
            logits = self.policy()
            losses = [
                -torch.log_softmax(logits[kind, :turns], -1)[:, RIGHT].mean() * per_kind
                for kind, turns in enumerate(self.kinds.turns)
            ]
            self._update(torch.stack(losses).sum() / (per_kind * len(losses)), self.spec.peak_rate)

    def _update(self, loss: Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.spec.max_grad_norm)
        self.optimizer.step()
        self.logits = self.policy().detach()

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
        now, then, before, advantages, rows, turns = _Parts(), _Parts(), [], [], [], []
        row, logits = 0, self.policy()
        for group, of_group in zip(groups, credits, strict=True):
            kept = self._kept(group)
            length = group.actions.shape[1]
            chosen = torch.from_numpy(group.actions[kept])
            at = torch.arange(length).expand_as(chosen).flatten()
            now.add(self._logprobs(logits, group, length)[at, chosen.flatten()])
            then.add(self._logprobs(self.first, group, length)[at, chosen.flatten()])
            before += group.logprobs[kept].flatten().tolist()
            advantages += [value for member in kept for value in of_group[member]]
            rows += [row + member for member in range(len(kept)) for _ in range(length)]
            turns += list(range(length)) * len(kept)
            row += len(kept)
        return TrainedTokens(
            trainer_logprobs=torch.cat(now.parts),
            sampler_logprobs=torch.tensor(before, dtype=torch.float64),
            advantages=torch.tensor(advantages, dtype=torch.float64),
            row_of_token=torch.tensor(rows),
            num_rows=row,
            reference_logprobs=torch.cat(then.parts) if self.objective.needs_reference else None,
            turn_of_token=torch.tensor(turns),
        )

    def _kept(self, group: Group) -> list[int]:
        """Its episodes whose tokens train."""
        out = group.cut_off if self.spec.cut_off_episodes == LEAVE_OUT else ()
        return [member for member in range(len(group.rewards)) if not (out and out[member])]

    def _logprobs(self, logits: Tensor, group: Group, length: int) -> Tensor:
        """[turns, actions], with the group's guidance."""
        shift = torch.zeros(self.kinds.actions, dtype=torch.float64)
        shift[RIGHT] = group.hint
        return torch.log_softmax(logits[group.kind, group.begins : group.begins + length] + shift, -1)


@dataclass(slots=True)
class _Parts:
    parts: list[Tensor] = field(default_factory=list)

    def add(self, part: Tensor) -> None:
        self.parts.append(part)
