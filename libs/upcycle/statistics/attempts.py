"""What several attempts at one task say: pass@k, pass^k, spread within groups, the histogram of rewards."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

NUM_BINS: Final = 10


def pass_at_k(successes: int, attempts: int, k: int) -> float:
    """Chance that at least one of k attempts succeeds: unbiased, from `attempts` of which `successes` did
    (Chen et al. 2021). Raises ValueError for fewer than k attempts."""
    _check(successes, attempts, k)
    return 1 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(successes: int, attempts: int, k: int) -> float:
    """Chance that all of k attempts succeed, pass^k: unbiased (Yao et al. 2024). Raises ValueError for fewer
    than k attempts."""
    _check(successes, attempts, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def ks_up_to(attempts: int) -> list[int]:
    """1, 2, 4, 8, … and the number of attempts itself."""
    powers = [2**power for power in range(attempts.bit_length()) if 2**power < attempts]
    return [*powers, attempts]


def has_spread(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ: a group without spread trains nothing."""
    return len(set(rewards)) > 1


def histogram(rewards: Iterable[float]) -> list[int]:
    """Counts in ten equal bins from 0 to 1; a reward of 1 is in the last. Raises ValueError for a reward
    outside."""
    counts = [0] * NUM_BINS
    for reward in rewards:
        if not 0 <= reward <= 1:
            raise ValueError(f"reward {reward:g} is outside 0 to 1: there is no bin for it")
        counts[min(NUM_BINS - 1, int(reward * NUM_BINS))] += 1
    return counts


def _check(successes: int, attempts: int, k: int) -> None:
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"{successes} successes of {attempts} attempts, k is {k}: use 1 <= k <= attempts")
