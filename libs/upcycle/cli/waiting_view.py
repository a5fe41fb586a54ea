"""Says what a run waits for, while it is followed and nothing of it changes."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import grpc

from upcycle.api.taskset.v1.service_pb2 import ExplainRunRequest
from upcycle.cli.live_view import one_row
from upcycle.cli.output import human

if TYPE_CHECKING:
    from upcycle.platform import Platform

QUIET_S: Final = 20.0
"""After so long without a change the planner is asked."""
_ASK_S: Final = 5.0
_ATTEMPTS_UNSAID: Final = 5
"""Attempts, about six seconds."""
_NUMBER: Final = re.compile(r"\d+")
MarkChange = Callable[[object], None]


class SayingWaits:
    """What a call waits for, as a line on standard error: once for each wait, after some attempts in vain."""

    def __init__(self) -> None:
        self._num_failed = 0

    def __call__(self, waiting_for: str | None) -> None:
        """None: it waits no more."""
        said = self._num_failed >= _ATTEMPTS_UNSAID
        self._num_failed = self._num_failed + 1 if waiting_for is not None else 0
        if waiting_for is not None and self._num_failed == _ATTEMPTS_UNSAID:
            line = f"waiting: {one_row(waiting_for)}; `upcycle doctor` says what is wrong, Ctrl-C ends this"
            human().print(line, markup=False, soft_wrap=True)
        elif waiting_for is None and said:
            human().print("it goes on", markup=False)


@asynccontextmanager
async def saying_what_it_waits_for(
    platform: "Platform", run_id: str, timeout_s: float
) -> AsyncIterator[MarkChange]:
    """What to call with each state of the run. A line on standard error names who owes what, and what to do,
    once for each cause; the first says how long the command follows it: timeout_s in all."""
    quiet = _Quiet(platform, run_id, timeout_s)
    asking = asyncio.create_task(quiet.ask_until_cancelled(), name=f"waiting/{run_id}")
    try:
        yield quiet.mark
    finally:
        asking.cancel()
        await asyncio.wait({asking})


class _Quiet:
    def __init__(self, platform: "Platform", run_id: str, timeout_s: float) -> None:
        self._platform, self._run_id = platform, run_id
        self._ends = f" (this command follows it for {timeout_s:g} s, --timeout-s; the run waits on)"
        self._last: object = None
        self._changed = asyncio.Event()
        self._said = set[str]()

    def mark(self, state: object) -> None:
        """A state of the run; equal ones are no change."""
        if state != self._last:
            self._last = state
            self._changed.set()

    async def ask_until_cancelled(self) -> None:
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._changed.wait()
            except TimeoutError:
                with suppress(grpc.aio.AioRpcError):
                    await self._say()

    async def _say(self) -> None:
        request = ExplainRunRequest(run_id=self._run_id)
        answer = await self._platform.tasksets.ExplainRun(request, timeout=_ASK_S)
        for reason in answer.waiting_for[:1]:
            cause = f"{reason.owner}: {reason.what}"
            if (known := _NUMBER.sub("#", cause)) not in self._said:
                self._said.add(known)
                line = one_row(f"it waits for {cause} → {reason.remedy}")
                line, self._ends = f"{line}{self._ends}", ""
                human().print(line, style="yellow", markup=False, soft_wrap=True)
