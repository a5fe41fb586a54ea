"""Self-play in the corridor: the policy proposes which walk is played, and walks it. One table, one optimizer
and one loss hold both roles; which proposals are played, and what they are paid, is the shipped code.

Most walks teach nothing, as most bugs do: they are solved already, or out of reach. All arms play the same
number of groups.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import torch

from benchmarks.study.arms import Measures, members_of, spec_of
from benchmarks.study.corridor import DETOUR, Group, Kinds, Table
from grpo_math.advantages import hierarchical
from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import TrainingSpec
from scenario_runner.domain.new_tasks import NewTaskRow, NewTaskState
from scenario_runner.domain.runs import EpisodeRow
from scenario_runner.domain.self_play import attempt_that_leaves, paid, twin
from upcycle.run_config.names import HIERARCHICAL

SOLVED, FAR, NEAR, INVALID = 10, 10, 4, 8
"""Proposals by what they are: walks that are solved, out of reach, and can be learned; and no walks."""
NUM_WALKS: Final = SOLVED + FAR + NEAR
PROPOSE: Final = NUM_WALKS
KINDS: Final = Kinds(
    turns=(1,) * SOLVED + (12,) * FAR + (5,) * NEAR + (1,),
    actions=NUM_WALKS + INVALID,
    start=(8.0,) * SOLVED + (0.0,) * FAR + (4.0,) * NEAR + (0.0,),
)
GROUPS: Final = 16
"""That a step plays."""
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
PAID, VALID, FROZEN = "paid", "valid", "frozen"
"""What trains the proposer: the shares that solve its proposals; that they are valid; nothing."""


class Both(Table):
    """A policy that plays against itself. useful: groups of walks that taught something; walked: all."""

    def __init__(self, spec: TrainingSpec, seed: int, teaches: str) -> None:
        super().__init__(KINDS, spec, seed)
        self.teaches = teaches
        self.useful = self.walked = self.valid = self.proposed = 0

    def success(self) -> float:
        """Of the walks that can be learned, exact."""
        fine = torch.softmax(self.logits, -1)[..., :2].sum(-1)
        kinds = range(SOLVED + FAR, NUM_WALKS)
        return statistics.fmean(float(fine[kind, : self.kinds.turns[kind]].prod()) for kind in kinds)

    def batch(self) -> list[Group]:
        """What teaches of the groups that a step plays: a group proposes, others walk what it proposed."""
        found: list[Group] = []
        before = self.drawn
        while self.drawn < before + GROUPS:
            found += [group for group in self._round() if self._teaches(group)]
        return found

    def _round(self) -> list[Group]:
        proposer = self.play(PROPOSE)
        self.drawn += 1
        kinds = [int(action) for action in proposer.actions[:, 0]]
        proposer.successes = [kind < NUM_WALKS for kind in kinds]
        self.proposed, self.valid = self.proposed + len(kinds), self.valid + sum(proposer.successes)
        rows, walks = self._played(kinds)
        members = [_member(number, valid) for number, valid in enumerate(proposer.successes)]
        rewards = [row.reward for row in paid(members, rows, self.spec.self_play_alpha)]
        proposer.rewards = rewards if self.teaches == PAID else [float(one) for one in proposer.successes]
        return walks if self.teaches == FROZEN else [*walks, proposer]

    def _played(self, kinds: Sequence[int]) -> tuple[list[NewTaskRow], list[Group]]:
        rows: list[NewTaskRow] = []
        walks: list[Group] = []
        for number, kind in enumerate(kinds):
            if kind >= NUM_WALKS:
                continue
            row = _proposal(number, kind)
            if twin(row.digest, rows) is not None:
                rows.append(row.dropped(NewTaskState.DUPLICATE, "proposed twice"))
                continue
            walks.append(self.play(kind))
            self.drawn += 1
            for success in walks[-1].successes:
                row = row.graded(success=success)
            rows.append(row.measured())
            walks += self._left_over(walks[-1])
        return rows, walks

    def _left_over(self, walk: Group) -> list[Group]:
        """What a failed attempt at a walk left of it, played: the way from its first wrong turn on."""
        if self.spec.self_play_order == 1:
            return []
        members = [_member(number, success) for number, success in enumerate(walk.successes)]
        failed = attempt_that_leaves([replace(row, graded_at=_NOW, body_key="body") for row in members])
        begins = 0 if failed is None else int((walk.actions[failed.member] > DETOUR).argmax())
        if not begins:  # nobody solved it, or nobody failed, or nothing of it was done
            return []
        self.drawn += 1
        return [self.play(walk.kind, begins=begins)]

    def _teaches(self, group: Group) -> bool:
        proposes = group.kind == PROPOSE
        compared = self.spec.advantage == HIERARCHICAL and proposes
        teaches = compared or why_no_signal(self.spec, members_of(group)) is None
        if not proposes:
            self.useful, self.walked = self.useful + teaches, self.walked + 1
        return teaches

    def _credits(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        if self.spec.advantage != HIERARCHICAL:
            return super()._credits(groups)
        rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
        flat = hierarchical(rewards, torch.tensor([group.kind == PROPOSE for group in groups])).tolist()
        return [
            [[value] * group.actions.shape[1] for value in of_group]
            for group, of_group in zip(groups, flat, strict=True)
        ]


def measured(seed: int, *, teaches: str = PAID, steps: int = 60, **options: Any) -> Measures:
    """One run. success: of the walks that can be learned; useful: share of the groups of walks that taught
    something; valid: of the proposals those that are; drawn: groups that a step played."""
    table = Both(spec_of(steps=steps, **options), seed, teaches)
    curve = [table.success()]
    for _ in range(steps):
        if groups := table.batch():
            table.learn(groups)
        curve.append(table.success())
    return {
        "success": curve[-1],
        "area": statistics.fmean(curve),
        "useful": table.useful / max(1, table.walked),
        "valid": table.valid / table.proposed,
        "drawn": table.drawn / steps,
    }


def _member(number: int, valid: bool) -> EpisodeRow:
    return EpisodeRow(str(number), "run-study", "g", number, 0, 0, "walks", success=valid)


def _proposal(number: int, kind: int) -> NewTaskRow:
    row = NewTaskRow(
        "run-study", number, "walks", 0, "walk", "", 0, "", "", "{}", solved=True, proposed_by=str(number)
    )
    return row.made(f'{{"kind":{kind}}}', hashlib.sha256(str(kind).encode()).hexdigest())
