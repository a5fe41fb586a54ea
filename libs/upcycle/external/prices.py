"""What tokens of an agent cost: UPCYCLE_AGENT_PRICES is `gpt-5=1.25/10,claude-sonnet-4-5=3/15`, the prices
of a million tokens read and written.

Nothing is known without it: prices of others change, and a stale one would be a wrong result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from upcycle.external.dialects import Tokens
from upcycle.playing.errors import PlayRefused
from upcycle.user_settings.layers import variables

VARIABLE: Final = "UPCYCLE_AGENT_PRICES"
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens."""

    read: float
    written: float

    def of(self, tokens: Tokens) -> float:
        """The cost of some."""
        return (tokens.prompt * self.read + tokens.completion * self.written) / _MILLION


def price_of(model: str, environ: Mapping[str, str] | None = None) -> Price | None:
    """The price of a model, None where it has none. Raises PlayRefused for a setting that cannot be read."""
    env = variables() if environ is None else environ
    prices = dict[str, Price]()
    for entry in filter(None, (one.strip() for one in env.get(VARIABLE, "").split(","))):
        name, _, price = entry.rpartition("=")
        read, _, written = price.partition("/")
        try:
            prices[name.strip()] = Price(float(read), float(written))
            valid = name and prices[name.strip()].read >= 0 and prices[name.strip()].written >= 0
        except ValueError:
            valid = False
        if not valid:
            raise PlayRefused(f"{VARIABLE} has {entry!r}", "write MODEL=READ/WRITTEN, such as gpt-5=1.25/10")
    return prices.get(model)
