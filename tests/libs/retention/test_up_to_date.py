"""A service that lags answers nothing and removes nothing."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from retention import Reference, SweepOrder, SweepReport
from retention.up_to_date import UpToDate
from upcycle.errors import Unavailable

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


class Bus:
    """Has one fact unread."""

    def __init__(self, stored_at: datetime) -> None:
        self.stored_at = stored_at

    async def unread(self, before: datetime) -> str | None:
        return "ledger has 1 messages unread" if self.stored_at < before else None


class Service:
    """Counts what reaches it."""

    def __init__(self) -> None:
        self.asked = self.swept = 0

    async def find(self, run_ids: Mapping[str, str], release: bool) -> Sequence[Reference]:
        self.asked += 1
        return [Reference(run_id, "open") for run_id in run_ids]

    async def sweep(self, order: SweepOrder) -> SweepReport:
        self.swept += 1
        return SweepReport("older than 30 days", number=1)


async def test_a_lag_of_an_hour_is_the_limit() -> None:
    service, bus = Service(), Bus(NOW - timedelta(hours=1))
    guard = UpToDate("planner", bus.unread, now=lambda: NOW)
    find, sweeps = guard.finding(service.find), guard.sweeping({"runs": service.sweep})
    assert await find({"run-1": "m"}, True) == [Reference("run-1", "open")]
    assert (await sweeps["runs"](SweepOrder(apply=True))).number == 1
    bus.stored_at -= timedelta(microseconds=1)
    why = r"planner has not read all events older than 1:00:00 \(ledger has 1 messages unread\)"
    with pytest.raises(Unavailable, match=why):
        await find({"run-1": "m"}, True)
    with pytest.raises(Unavailable, match=why):
        await sweeps["runs"](SweepOrder(apply=True))
    assert (service.asked, service.swept) == (1, 1)
