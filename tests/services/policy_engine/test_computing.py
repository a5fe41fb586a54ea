"""When an engine that says it is well counts as hung."""

import asyncio

import pytest

from engine_client import EngineLoad, EngineRejected, EngineUnavailable
from policy_engine.adapters.computing import ComputingWatch

HANG_S = 60.0


class Asked:
    """An engine that answers when the test lets it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.answers = asyncio.Event()
        self.refuses: Exception | None = None
        self.silent_metrics = False
        self.paused = False
        self.num_tokens = 100
        self.times_asked = 0
        self.watch = ComputingWatch(self, HANG_S, lambda: self.now_s)

    async def ask_for_a_token(self, *, timeout_s: float) -> None:
        self.times_asked += 1
        assert timeout_s > HANG_S
        await self.answers.wait()
        if self.refuses is not None:
            raise self.refuses

    async def is_paused(self) -> bool:
        return self.paused

    async def load(self) -> EngineLoad:
        if self.silent_metrics:
            raise EngineUnavailable("no metrics")
        return EngineLoad(num_tokens=self.num_tokens)

    async def look_after(self, seconds: float) -> str:
        self.now_s += seconds
        found = await self.watch.why_hung()
        for _ in range(3):
            await asyncio.sleep(0)
        return found


async def test_an_engine_that_answers_is_asked_again_after_a_while_and_never_hangs() -> None:
    asked = Asked()
    asked.answers.set()
    for _ in range(100):
        assert await asked.look_after(6.0) == ""
    assert 20 <= asked.times_asked <= 60
    await asked.watch.close()


@pytest.mark.parametrize("silent_metrics", [False, True])
async def test_one_that_computes_nothing_hangs_and_says_for_how_long(silent_metrics: bool) -> None:
    asked = Asked()
    asked.silent_metrics = silent_metrics
    assert await asked.look_after(10.0) == ""
    assert await asked.look_after(1.0) == ""  # the first look at its tokens
    assert await asked.look_after(HANG_S - 2.0) == ""
    assert (await asked.look_after(2.0)).startswith("it has computed no token for 6")
    assert asked.times_asked == 1
    await asked.watch.close()


async def test_a_busy_engine_whose_queue_is_long_does_not_hang() -> None:
    asked = Asked()
    await asked.look_after(10.0)
    for _ in range(20):
        asked.num_tokens += 1
        assert await asked.look_after(HANG_S - 1.0) == ""
    await asked.look_after(0.0)
    assert await asked.look_after(HANG_S) != ""
    await asked.watch.close()


async def test_a_paused_engine_does_not_hang_and_gets_its_time_after_it_is_resumed() -> None:
    asked = Asked()
    await asked.look_after(10.0)
    asked.paused = True
    assert await asked.look_after(10 * HANG_S) == ""
    asked.paused = False
    assert await asked.look_after(HANG_S - 1.0) == ""
    assert await asked.look_after(1.0) != ""
    await asked.watch.close()


async def test_a_refusal_is_an_answer() -> None:
    asked = Asked()
    asked.refuses = EngineRejected(400, "no")
    asked.answers.set()
    for _ in range(10):
        assert await asked.look_after(HANG_S) == ""
    assert asked.times_asked > 1
    await asked.watch.close()
