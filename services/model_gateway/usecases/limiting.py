"""Limits and budgets of keys, request by request."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from model_gateway import telemetry
from model_gateway.adapters.sql_usage import SqlUsage
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.limits import KeyLimits, KeyMeter, LimitReached
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_READ_EVERY_S: Final = 5.0
_MAX_METERS: Final = 10_000


class BudgetUnknown(GatewayError):
    """What the key has spent today cannot be read, so nothing that costs money is asked."""

    status, kind, code = 503, "server_error", "budget_unknown"


@dataclass(slots=True)
class Admission:
    """A request that its key's limits let in. `ended` once, however it ends."""

    key_id: str
    limits: KeyLimits
    meter: KeyMeter
    now: Callable[[], datetime]
    unknown: BudgetUnknown | None = None
    """Why it is not known what the key has spent."""
    reserved: float = 0.0

    def reserve(self, cost: float) -> None:
        """Before a model that costs something is asked: the most that it should cost. Raises BudgetSpent,
        BudgetUnknown."""
        if self.unknown is not None:
            raise self.unknown
        try:
            self.meter.reserve(self.key_id, self.limits, cost, self.now())
        except LimitReached as error:
            _count(error)
            raise
        self.reserved += cost

    def ended(self, tokens: int, cost: float) -> None:
        """What it took."""
        self.meter.ended(tokens, cost, self.reserved, self.now())


class LimitKeys:
    """The meters of all keys. Rates and concurrency are counted in this process; money is that of all
    replicas, as the database had it a few seconds ago."""

    def __init__(
        self,
        usage: SqlUsage,
        defaults: KeyLimits,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self._now = now
        self._monotonic = monotonic
        self._meters: dict[str, KeyMeter] = {}
        self._over_defaults: Callable[[KeyLimits], KeyLimits]
        self._over_defaults = lru_cache(_MAX_METERS)(lambda own: own.over(defaults))

    def limits_of(self, key: ApiKey) -> KeyLimits:
        """Its own, and the settings' where it has none."""
        return self._over_defaults(key.limits)

    async def admit(self, key: ApiKey) -> Admission:
        """One more request of the key. Raises LimitReached."""
        limits = self.limits_of(key)
        meter = self._meters.get(key.key_id)
        if meter is None:
            self._forget_idle()
            meter = self._meters[key.key_id] = KeyMeter(monotonic=self._monotonic)
        unknown = await self._read_money(key.key_id, limits, meter)
        try:
            meter.admit(key.key_id, limits)
        except LimitReached as error:
            _count(error)
            raise
        return Admission(key.key_id, limits, meter, self._now, unknown)

    def standing(self, key: ApiKey) -> dict[str, Any]:
        """The key's limits and what it has used of them."""
        limits, meter = self.limits_of(key), self._meters.get(key.key_id)
        in_flight = meter.in_flight if meter is not None else 0
        return {"limits": limits.to_json(), "in_flight": in_flight}

    async def _read_money(self, key_id: str, limits: KeyLimits, meter: KeyMeter) -> BudgetUnknown | None:
        """None: what the key has spent is known, or does not matter."""
        if limits.cost_per_day is None:
            return None
        now = self._now()
        known = meter.spent(now)
        if meter.read_at_s is not None and self._monotonic() - meter.read_at_s < _READ_EVERY_S:
            return None
        try:
            meter.stored(await self._usage.spent_today(key_id, now), now)
        except Unavailable as error:
            if meter.read_at_s is None:
                return BudgetUnknown(f"what key {key_id!r} has spent cannot be read now: {error}")
            log.warning("budget_unread", extra={"key_id": key_id, "known": known, "why": str(error)})
        return None

    def _forget_idle(self) -> None:
        """Their number is that of the keys, which can grow."""
        if len(self._meters) >= _MAX_METERS:
            self._meters = {name: one for name, one in self._meters.items() if one.in_flight}


def _count(error: LimitReached) -> None:
    telemetry.LIMITED.labels(error.limit).inc()
