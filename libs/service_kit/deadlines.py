"""Every wait has a deadline and a name, so that a process that waits can say for what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class DeadlineExceeded(TimeoutError):
    """`what` did not happen within `seconds`."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(what, seconds)
        self.what = what
        self.seconds = seconds

    def __str__(self) -> str:
        return f"gave up waiting for {self.what} after {self.seconds:g} s"


@asynccontextmanager
async def deadline(name: str, seconds: float) -> AsyncIterator[None]:
    """Cancel the body after `seconds` and raise DeadlineExceeded that says what was waited for.

    A TimeoutError that the body raises itself passes through untouched.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if scope.expired():
            raise DeadlineExceeded(name, seconds) from error
        raise
