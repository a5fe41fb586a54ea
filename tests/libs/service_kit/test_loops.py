"""Loops end when their service stops; calls are repeated while a peer is unavailable, and not for ever."""

import asyncio
import itertools

import pytest

from service_kit.loops import ended, pause, until_stopped
from upcycle.errors import Unavailable
from upcycle.retrying import retry


class _Answers:
    """Raises what it is given, in order, and answers "done" afterwards."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_call_is_repeated_until_it_succeeds_and_names_what_it_waits_for() -> None:
    call, seen = _Answers(Unavailable("the store"), Unavailable("the store", 0.0)), list[str | None]()
    assert await retry(call, budget_s=30, first_pause_s=0.001, on_wait=seen.append) == "done"
    assert (call.calls, seen) == (3, ["the store", "the store", None])


async def test_the_last_error_is_raised_when_the_next_pause_would_end_after_the_budget() -> None:
    call, seen = _Answers(Unavailable("the registry", retry_after_s=60)), list[str | None]()
    with pytest.raises(Unavailable, match="the registry"):
        await retry(call, budget_s=1, on_wait=seen.append)
    assert (call.calls, seen) == (1, [])


async def test_what_was_given_up_is_still_awaited() -> None:
    """Otherwise a run whose trainer waits for the store would show that it waits for nothing."""
    call, seen = _Answers(Unavailable("the store", 0.0), Unavailable("the store", 60)), list[str | None]()
    with pytest.raises(Unavailable, match="the store"):
        await retry(call, budget_s=30, on_wait=seen.append)
    assert seen == ["the store"]


async def test_other_errors_are_not_retried_and_end_the_wait() -> None:
    call, seen = _Answers(Unavailable("the store", 0.0), KeyError("gone")), list[str | None]()
    with pytest.raises(KeyError):
        await retry(call, budget_s=30, on_wait=seen.append)
    assert (call.calls, seen) == (2, ["the store", None])


async def test_work_is_repeated_when_woken_and_ends_when_stopped() -> None:
    stop, wake, done = asyncio.Event(), asyncio.Event(), asyncio.Queue[int]()
    numbers = itertools.count(1)

    async def work() -> None:
        number = next(numbers)
        done.put_nowait(number)
        if number == 2:
            raise Unavailable("the planner")

    loop = asyncio.create_task(until_stopped(stop, work, every_s=3600, wake=wake))
    async with asyncio.timeout(30):
        for number in (1, 2, 3):  # the third comes although the second found a peer away
            assert await done.get() == number
            wake.set()
        stop.set()
        await loop


async def test_an_error_that_is_no_absence_ends_the_loop() -> None:
    with pytest.raises(KeyError):
        await until_stopped(asyncio.Event(), _Answers(KeyError("gone")), every_s=0.001)  # type: ignore[arg-type]


async def test_a_pause_says_whether_to_go_on_and_clears_the_wake() -> None:
    stop, wake = asyncio.Event(), asyncio.Event()
    wake.set()
    assert await pause(stop, 3600, wake)
    assert not wake.is_set()
    stop.set()
    assert not await pause(stop, 3600, wake)


async def test_a_task_that_lost_its_cancellation_ends_all_the_same() -> None:
    lost = 0

    async def loop() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    tasks = [asyncio.create_task(loop()), asyncio.create_task(asyncio.sleep(3600))]
    await asyncio.sleep(0)
    await ended(tasks, again_s=0.01)
    assert lost == 2
    assert all(task.cancelled() for task in tasks)


async def test_a_task_that_is_being_cancelled_ends_what_it_does_undisturbed() -> None:
    is_clean = False

    async def work() -> None:
        nonlocal is_clean
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            is_clean = True

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    await ended([task])
    assert is_clean


async def test_nothing_to_end_is_no_wait() -> None:
    await ended([])
