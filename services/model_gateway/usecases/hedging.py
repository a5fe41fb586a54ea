"""A second request beside a first that is slow to begin: the answer that begins first stands, the other is
given up. Providers charge for both, so it is off unless a provider's entry says otherwise."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from model_gateway.adapters.upstream_http import UpstreamReply

Send = Callable[[], Coroutine[Any, Any, UpstreamReply]]


async def hedged(send: Send, *, after_s: float, may_hedge: Callable[[], bool]) -> tuple[UpstreamReply, int]:
    """The first reply, and how many requests were given up for it. may_hedge: asked once, when the time is
    over. Raises UpstreamFailed where both failed."""
    tasks = [asyncio.create_task(send())]
    try:
        done, _ = await asyncio.wait(tasks, timeout=after_s)
        if not done and may_hedge():
            tasks.append(asyncio.create_task(send()))
        reply = await _first(tasks)
        return reply, sum(not one.done() or one.exception() is None for one in tasks)
    finally:
        await _give_up(tasks)


async def _first(tasks: list[asyncio.Task[UpstreamReply]]) -> UpstreamReply:
    waiting = set(tasks)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                tasks.remove(task)
                return task.result()
        if not waiting:
            failure = next(iter(done)).exception()
            raise failure if failure is not None else AssertionError


async def _give_up(tasks: Iterable[asyncio.Task[UpstreamReply]]) -> None:
    """Also a reply that came at the same moment."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, UpstreamReply):
            result.close()
