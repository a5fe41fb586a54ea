"""How likely so many hits are by chance: the exact binomial."""

import math


def binomial_tail(hits: int, num: int, chance: float) -> float:
    """P(at least `hits` of `num`), where each is a hit with this chance, above 0 and below 1.

    Of the two tails the one without the mean is summed: its terms fall from the first one on. That one is
    from logarithms: the number of ways to draw some of a thousand is no float.
    """
    if hits <= num * chance:
        return 1.0 - binomial_tail(num - hits + 1, num, 1 - chance)
    if hits > num:
        return 0.0
    ways = math.lgamma(num + 1) - math.lgamma(hits + 1) - math.lgamma(num - hits + 1)
    term = math.exp(ways + hits * math.log(chance) + (num - hits) * math.log1p(-chance))
    total = 0.0
    for k in range(hits, num + 1):
        total += term
        term *= (num - k) / (k + 1) * (chance / (1 - chance))
    return min(1.0, total)
