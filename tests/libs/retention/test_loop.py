"""The loop that sweeps at an interval."""

import asyncio

import pytest
from tests.support.waiting import until

from retention import SweepOrder, SweepReport
from retention.loop import SweepLoop
from upcycle.errors import Unavailable


class Sweep:
    """Six batches. Each has 40 things that stay, the last one a thing that goes too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails_at = ""

    async def __call__(self, order: SweepOrder) -> SweepReport:
        self.asked.append(order.after)
        if order.after and order.after == self.fails_at:
            self.fails_at = ""
            raise Unavailable("the registry does not answer")
        at = int(order.after or 0)
        return SweepReport("old", number=at // 5, kept={"needed": 40}, next=str(at + 1) if at < 5 else "")


async def asked(sweep: Sweep, count: int) -> list[str]:
    stop = asyncio.Event()
    running = asyncio.create_task(SweepLoop({"runs": sweep}, every_s=0.01).run(stop))
    await until(lambda: len(sweep.asked) >= count)
    stop.set()
    await running
    return sweep.asked[:count]


async def test_a_turn_looks_at_so_many_that_stay_and_the_next_goes_on_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retention.loop.MAX_KEPT", 80)
    stop, sweep = asyncio.Event(), Sweep()
    loop = SweepLoop({"runs": sweep}, every_s=60)
    for expected in (["", "1"], ["2", "3"], ["4", "5"], ["", "1"]):
        sweep.asked.clear()
        await loop._all_batches("runs", stop)
        assert sweep.asked == expected


async def test_a_batch_that_could_not_be_swept_is_the_first_of_the_next_turn() -> None:
    sweep = Sweep()
    sweep.fails_at = "3"
    assert await asked(sweep, 8) == ["", "1", "2", "3", "3", "4", "5", ""]
