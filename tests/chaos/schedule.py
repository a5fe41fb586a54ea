"""What is broken when: drawn from the seed alone, so that a campaign can be repeated."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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

    kill, the shortest, comes after every other fault: a process that just came back is the one most often
    asked.
    """
    rng = random.Random(seed)
    others = sorted(set(targets) - {"kill"})
    number = 0
    while True:
        rng.shuffle(others)
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
