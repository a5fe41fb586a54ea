"""Waiting for what a test expects to happen, under a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def until(
    condition: Callable[[], Any], what: str = "what the test waits for", *, timeout_s: float = 30.0
) -> Any:
    """Ask again until the answer is true, and return it. condition: plain or async.

    Raises AssertionError, which names `what` did not happen.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        await asyncio.sleep(0.01)
