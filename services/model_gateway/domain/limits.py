"""What a key may use: requests and tokens a minute, requests at once, money a day."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from model_gateway.domain.errors import GatewayError

_MINUTE_S: Final = 60.0
_BUSY_S: Final = 1.0
"""To try again after, where another request of the key has to end first."""


class LimitReached(GatewayError):
    """A limit of the key; the message names it with its value."""

    status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, limit: str, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class BudgetSpent(LimitReached):
    """The key's money for today is spent."""

    code = "insufficient_quota"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Of one key; None: no limit. cost_per_day: in the currency of the prices, a day in UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    cost_per_day: float | None = None

    def over(self, defaults: "KeyLimits") -> "KeyLimits":
        """These where they are set, else the defaults."""
        own = self.to_json()
        return KeyLimits(**{**defaults.to_json(), **own})

    def to_json(self) -> dict[str, Any]:
        """Those that are set."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, said: Mapping[str, Any] | None) -> "KeyLimits":
        """As stored. What a later version stored beside is left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in (said or {}).items() if name in known})


NO_LIMITS: Final = KeyLimits()


class Bucket:
    """Fills up at `per_minute`, holds a minute's worth. It may be overdrawn: what tokens a request takes is
    known when it ends."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at_s = now_s

    def wait_s(self, least: float, now_s: float) -> float:
        """Until the level is at least that; 0: it is."""
        self._fill(now_s)
        missing = least - self._level
        return 0.0 if missing <= 0 else missing * _MINUTE_S / self.per_minute

    def take(self, amount: float, now_s: float) -> None:
        """Some of it, and more than there is if need be."""
        self._fill(now_s)
        self._level -= amount

    def _fill(self, now_s: float) -> None:
        self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / _MINUTE_S)
        self._at_s = now_s


class KeyMeter:
    """What one key uses, in this process. Money is counted from what the database has for the day."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.in_flight = 0
        self._day_ends: datetime | None = None
        self._spent = 0.0
        self._reserved = 0.0
        self.read_at_s: float | None = None
        """When the database was asked last."""

    def spent(self, now: datetime) -> float:
        """Since the day began, as far as known."""
        self._turn_day(now)
        return self._spent

    def stored(self, spent: float, now: datetime) -> None:
        """What the database has for the day, of all replicas; what is on its way there is counted here."""
        self._turn_day(now)
        self._spent = max(self._spent, spent)
        self.read_at_s = self._monotonic()

    def admit(self, key_id: str, limits: KeyLimits) -> None:
        """One more request. Raises LimitReached, which changes nothing."""
        now_s = self._monotonic()
        requests = self._requests = _bucket(self._requests, limits.requests_per_minute, now_s)
        tokens = self._tokens = _bucket(self._tokens, limits.tokens_per_minute, now_s)
        most = limits.concurrency
        if most is not None and self.in_flight >= most:
            raise LimitReached(
                "concurrency", f"key {key_id!r} has {most} requests in flight, which is its limit", _BUSY_S
            )
        if requests is not None and (wait_s := requests.wait_s(1, now_s)):
            raise _too_fast(key_id, "requests_per_minute", f"{limits.requests_per_minute} requests", wait_s)
        if tokens is not None and (wait_s := tokens.wait_s(1, now_s)):
            raise _too_fast(key_id, "tokens_per_minute", f"{limits.tokens_per_minute} tokens", wait_s)
        if requests is not None:
            requests.take(1, now_s)
        self.in_flight += 1

    def reserve(self, key_id: str, limits: KeyLimits, cost: float, now: datetime) -> None:
        """Before a model that costs something is asked: what is in flight counts as spent, and what the
        request may cost must be left. Raises BudgetSpent, which changes nothing."""
        most = limits.cost_per_day
        if most is None:
            self._reserved += cost
            return
        left = most - self.spent(now) - self._reserved
        if left > 0 and cost <= left:
            self._reserved += cost
            return
        known = (
            f"key {key_id!r} has spent {self._spent:.4g} of {most:g} today, and {self._reserved:.4g} may go "
            "to requests in flight"
        )
        why = f"; this one may cost {cost:.4g}: name a smaller max_tokens, or n" if left > 0 else ""
        left_s = (_day_of(now) + timedelta(days=1) - now).total_seconds()
        raise BudgetSpent("cost_per_day", f"{known}{why}; its budget begins anew at 00:00 UTC", left_s)

    def ended(self, tokens: int, cost: float, reserved: float, now: datetime) -> None:
        """An admitted request is over, however it ended."""
        self.in_flight -= 1
        self._reserved = max(0.0, self._reserved - reserved)
        if self._tokens is not None:
            self._tokens.take(tokens, self._monotonic())
        self._turn_day(now)
        self._spent += cost

    def _turn_day(self, now: datetime) -> None:
        if self._day_ends is None or now >= self._day_ends:
            self._day_ends, self._spent, self.read_at_s = _day_of(now) + timedelta(days=1), 0.0, None


def _bucket(known: Bucket | None, per_minute: int | None, now_s: float) -> Bucket | None:
    """The one that is in use; a fresh one where the limit changed."""
    if per_minute is None:
        return None
    return known if known is not None and known.per_minute == per_minute else Bucket(per_minute, now_s)


def _too_fast(key_id: str, limit: str, rate: str, wait_s: float) -> LimitReached:
    return LimitReached(limit, f"key {key_id!r} may use {rate} a minute; try again in {wait_s:.1f} s", wait_s)


def _day_of(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
