"""What is broken when: drawn from the seed alone, so that a campaign can be repeated."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SEEDS_FOR_ALL: Final = 3
"""So many seeds in a row begin with different kinds, each with its share, and so meet every kind."""

PAUSE_S: Final = (2.0, 6.0)
"""Between the recovery from one fault and the next fault."""
HOLD_S: Final[Mapping[str, tuple[float, float]]] = {
    "kill": (0.0, 0.0),
    "freeze": (5.0, 60.0),
    "rolling_restart": (0.0, 0.0),
    "cut": (3.0, 20.0),
    "silence": (3.0, 30.0),
    "slow": (5.0, 20.0),
    "broken_upload": (10.0, 20.0),
    "postgres_restart": (0.0, 5.0),
    "nats_loss": (3.0, 20.0),
    "garbage_engine": (5.0, 15.0),
    "disk_full": (5.0, 20.0),
    "clock_jump": (5.0, 20.0),
}
"""Seconds for which each kind of fault lasts, at least and at most."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault. target: a process, or `process>dependency` for a link."""

    number: int
    kind: str
    target: str
    pause_s: float
    """Before it."""
    hold_s: float
    draw: float
    """0 to 1; what else the kind has to choose (how slow, how far a clock jumps)."""

    def __str__(self) -> str:
        return (
            f"fault {self.number}: {self.kind} {self.target} for {self.hold_s:.1f} s (draw {self.draw:.3f})"
        )


def _hold_s(kind: str, draw: float) -> float:
    """More often short than long: a third of the span in the mean."""
    shortest, longest = HOLD_S[kind]
    return shortest + (longest - shortest) * draw**2


def schedule(seed: int, targets: Mapping[str, Sequence[str]]) -> Iterator[Planned]:
    """Faults without end, of each kind in `targets` once per round, in random order.

    A short campaign ends within its first round, so what that begins with is not left to chance: the kinds
    are dealt to `SEEDS_FOR_ALL` seeds in a row. kill, the shortest, comes after every other fault: a process
    that just came back is the one most often asked.
    """
    rng = random.Random(seed)
    others = _dealt(sorted(set(targets) - {"kill"}), seed, rng)
    number = 0
    while True:
        for kind in [each for other in others for each in (other, "kill")] or ["kill"]:
            if kind not in targets:
                continue
            yield Planned(
                number=number,
                kind=kind,
                target=rng.choice(targets[kind]),
                pause_s=rng.uniform(*PAUSE_S),
                hold_s=_hold_s(kind, rng.random()),
                draw=rng.random(),
            )
            number += 1
        rng.shuffle(others)


def _dealt(kinds: Sequence[str], seed: int, rng: random.Random) -> list[str]:
    """All kinds, the share of this seed first."""
    share = kinds[seed % SEEDS_FOR_ALL :: SEEDS_FOR_ALL]
    rest = [kind for kind in kinds if kind not in share]
    return [*rng.sample(share, len(share)), *rng.sample(rest, len(rest))]
