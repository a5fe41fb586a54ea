"""Self-play: the two scenarios that a run names, and what a proposal is paid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roles:
    """Of a run that plays against itself: the scenario whose answers propose tasks, and the one that the
    tasks are of. order: 1 where only those are played, 2 where what a failed attempt leaves is, too, and so
    on."""

    proposer: str
    solver: str
    order: int = 1


def is_pair(text: str) -> bool:
    """Whether this is PROPOSER:SOLVER."""
    names = text.split(":")
    return len(names) == 2 and all(name and name == name.strip() for name in names) and names[0] != names[1]


def roles_of(self_play: str, order: int = 1) -> Roles | None:
    """The roles that a run's `self_play` names; None where it is empty."""
    if not self_play:
        return None
    proposer, solver = self_play.split(":")
    return Roles(proposer, solver, order)


def proposer_reward(pass_rate: float, alpha: float) -> float:
    """What a proposal is paid that this share of its group solves: the fewer solve it the more, and little
    where all or none do (Self-play SWE-RL, arXiv:2512.18552)."""
    return 1 - (1 + alpha) * pass_rate if 0 < pass_rate < 1 else -alpha


NO_PROPOSAL_REWARD = -1.0
"""Of an answer that is no proposal: its grade was no success."""
