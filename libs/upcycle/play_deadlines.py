"""A deadline for code that is not ours and runs in this process: where it waits it is cancelled, where it
blocks it is interrupted by a signal."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

_GRACE_S: Final = 1.0
"""Code that waits is cancelled first; only code that blocks is still there after this."""


class _Blocked(BaseException):
    """Raised inside the code that blocks; its `except Exception` does not catch it."""


@asynccontextmanager
async def play_deadline(limit_s: float) -> AsyncIterator[None]:
    """Raises TimeoutError. Code that blocks is interrupted only in the main thread of a POSIX process whose
    timer is free; elsewhere it blocks on."""
    try:
        with _interrupting(limit_s + _GRACE_S):
            async with asyncio.timeout(limit_s):
                yield
    except _Blocked:
        raise TimeoutError(f"it blocked for {limit_s:g} s") from None


@contextmanager
def _interrupting(after_s: float) -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        if asyncio.current_task() is None:  # the event loop itself: nothing blocks it now
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
            return
        raise _Blocked

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
