"""Interest in whole cents."""


def yearly(cents: int, percent: int) -> int:
    """The interest of one year, rounded down."""
    return cents * percent // 100


def grown(cents: int, percent: int, years: int) -> int:
    """The balance after so many years, interest added at the end of each."""
    for _ in range(years):
        cents += yearly(cents, percent)
    return cents


def payments(cents: int, rate: int) -> list[int]:
    """Payments of at most `rate` until nothing is left, the last one smaller where it does not divide."""
    paid = []
    while cents > 0:
        paid.append(min(rate, cents))
        cents -= paid[-1]
    return paid
