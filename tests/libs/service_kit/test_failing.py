"""A loop that fails each time shows in /readyz after a minute, with what fails."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.waiting import until

from service_kit.background import Worker
from service_kit.failing import FailingWork
from service_kit.loops import one_piece, until_stopped
from upcycle.errors import Unavailable


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failing(clock: Clock) -> FailingWork:
    return FailingWork(now=clock)


class Rounds:
    """A loop of a Worker that goes on to its next round when a test says so."""

    def __init__(self, work: Callable[[], Awaitable[None]], failing: FailingWork) -> None:
        self._work = work
        self._again = asyncio.Event()
        self._num_done = 0
        self.worker = Worker("loop", self._run, failing=failing)

    async def _run(self, stop: asyncio.Event) -> None:
        await until_stopped(stop, self._round, every_s=3600, wake=self._again)

    async def _round(self) -> None:
        try:
            await self._work()
        finally:
            self._num_done += 1

    async def start(self) -> None:
        await self.worker.start()
        await until(lambda: self._num_done == 1)

    async def next(self) -> None:
        expected = self._num_done + 1
        self._again.set()
        await until(lambda: self._num_done == expected)
        await asyncio.sleep(0)


async def test_a_loop_that_fails_for_a_minute_is_an_alarm_until_it_works(
    clock: Clock, failing: FailingWork
) -> None:
    is_away = True

    async def work() -> None:
        if is_away:
            raise Unavailable("the registry does not answer")

    loop = Rounds(work, failing)
    await loop.start()
    await loop.next()
    clock.now_s += 59
    assert loop.worker.ready() is None
    clock.now_s += 1
    why = "alarm: each try fails, for 60 s, 2 tries: the registry does not answer"
    assert loop.worker.ready() == why
    is_away = False
    await loop.next()
    assert loop.worker.ready() is None
    await loop.worker.stop()


async def test_one_failed_try_of_a_loop_that_tries_once_an_hour_is_no_alarm(
    clock: Clock, failing: FailingWork
) -> None:
    async def work() -> None:
        raise Unavailable("the planner does not answer")

    loop = Rounds(work, failing)
    await loop.start()
    clock.now_s += 3000
    assert loop.worker.ready() is None
    await loop.next()
    assert "for 3000 s, 2 tries" in str(loop.worker.ready())
    await loop.worker.stop()


async def test_the_piece_that_fails_is_named_beside_others_that_work(
    clock: Clock, failing: FailingWork
) -> None:
    """Three runs: one is swept, one is broken for a while and one for ever, and the last ends."""
    broken = {"run-2", "run-3"}

    async def work() -> None:
        failed: Unavailable | None = None
        for run_id in ("run-1", "run-2", "run-3"):
            try:
                with one_piece(f"sweep of {run_id}", of=run_id):
                    if run_id in broken:
                        raise ZeroDivisionError("by zero")
            except Unavailable as error:
                failed = error
        if failed is not None:
            raise failed

    loop = Rounds(work, failing)
    await loop.start()
    clock.now_s += 61
    assert failing.of("run-3") == []
    await loop.next()
    one = "fails, for 61 s, 2 tries: ZeroDivisionError('by zero')"
    assert loop.worker.ready() == f"alarm: sweep of run-2 {one}; sweep of run-3 {one}"
    assert failing.of("run-1") == []
    broken.discard("run-2")
    await loop.next()
    assert failing.of("run-2") == []
    assert failing.of("run-3") == ["sweep of run-3 fails: ZeroDivisionError('by zero')"]
    broken.clear()
    await loop.next()
    assert loop.worker.ready() is None
    await loop.worker.stop()


async def test_work_that_is_asked_for_no_more_is_no_alarm(clock: Clock, failing: FailingWork) -> None:
    """A run that could not be planned was cancelled; another one fails since."""
    runs = ["run-1"]

    async def work() -> None:
        with one_piece(f"planning of {runs[0]}", of=runs[0]):
            raise Unavailable("the database is full")

    loop = Rounds(work, failing)
    await loop.start()
    await loop.next()
    clock.now_s += 61
    assert "planning of run-1" in str(loop.worker.ready())
    runs[0] = "run-2"
    await loop.next()
    assert loop.worker.ready() is None
    await loop.worker.stop()


def test_a_few_of_many_failures_are_named(clock: Clock, failing: FailingWork) -> None:
    for _ in range(2):
        for number in range(5):
            with pytest.raises(Unavailable), failing.piece(f"gate of 'm{number}'"):
                raise Unavailable("the rows of a candidate cannot be read")
        clock.now_s += 61
    why = str(failing.alarm())
    assert why.count("cannot be read") == 3
    assert why.endswith("and 2 more")
