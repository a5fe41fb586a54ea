"""How soon the watch finds a head that lost, and how often it rolls back one that did not."""

from collections.abc import Callable

import numpy as np
from tests.gate_study.population import Generator, Population

from upcycle.gate.watch import Pair, Play, Watch


def rolled_back(loss: float, *, mean: float, pairs: int, scatter: float = 0.3) -> Callable[[Generator], bool]:
    """Whether a head that lost so much is rolled back within so many pairs. An equal head has no scatter."""

    def draw(rng: Generator) -> bool:
        set_ = Population.drawn(rng, mean=mean)
        before = set_.head()
        now = set_.changed(rng, -loss, scatter) if loss or scatter else before
        at = rng.integers(0, len(before), pairs)
        heads = (rng.random(pairs) < now[at]).tolist()
        predecessors = (rng.random(pairs) < before[at]).tolist()
        watch = Watch.of(f"f{f}" for f in np.unique(set_.family))
        for family, head, predecessor in zip(set_.family[at].tolist(), heads, predecessors, strict=True):
            watch = watch.after(Pair(f"f{family}", Play(head), Play(predecessor)))
            if watch.is_lost:
                return True
        return False

    return draw
