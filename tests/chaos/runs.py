"""The training runs of a campaign: one after the other, watched for progress once a second."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from grpc.aio import AioRpcError

from service_kit.deadlines import deadline
from upcycle.api.taskset.v1.service_pb2 import ExplainRunRequest, GetRunRequest, ResumeRunRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_PAUSED, Run, RunSpec
from upcycle.errors import Unavailable
from upcycle.platform import Platform
from upcycle.run_client import is_over, new_request_id, state_word, submit_run

HUNG_S: Final = 120.0
"""Without a settled episode or a named wait for so long, with nothing broken: the run hangs."""
_LOOK_S: Final = 1.0
_POLL_S: Final = 0.1
_CALL_S: Final = 5.0
_SUBMIT_LIMIT_S: Final = 240.0


@dataclass(slots=True)
class Runs:
    """Keeps one training run under way until `no_more`."""

    platform: Platform
    spec: RunSpec
    say: Callable[[str], None]
    settled: int = 0
    """Episodes of all runs of this campaign."""
    finished: Counter[str] = field(default_factory=Counter)
    hung: dict[str, str] = field(default_factory=dict)
    """run_id to what was seen."""
    waited: Counter[str] = field(default_factory=Counter)
    """Waits of more than HUNG_S that `why` had a name for."""
    paused: Counter[str] = field(default_factory=Counter)
    """How often each run paused itself, because most of its episodes failed without the policy's doing.
    It was resumed, as an operator does when what was broken is whole again."""
    no_more: bool = False
    current: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _counts_from: float = field(default_factory=time.monotonic)
    _before: int = 0
    """Episodes of runs that are over."""

    async def watch(self) -> None:
        """Submit, look, submit the next one; returns when the last run is over."""
        while not self.no_more:
            await self._submit()
            while not await self._look():
                await asyncio.sleep(_LOOK_S)
        self.over.set()

    def begin_again(self) -> None:
        """Silence counts from now: something is broken, or was just healed."""
        self._counts_from = time.monotonic()

    async def beyond(self, settled: int) -> None:
        """Return when more than so many episodes are settled. The caller sets the deadline."""
        while self.settled <= settled:
            await asyncio.sleep(_POLL_S)

    async def _submit(self) -> None:
        request_id = new_request_id("chaos")
        async with deadline("a run to be accepted", _SUBMIT_LIMIT_S):
            while True:
                try:
                    run = await submit_run(self.platform, self.spec, request_id=request_id)
                except Unavailable:
                    await asyncio.sleep(_LOOK_S)
                else:
                    break
        self.current = run.run_id
        self.say(f"run {run.run_id} begins")

    async def _look(self) -> bool:
        """Whether the current run is over; counts what it settled and notices that it hangs."""
        run = await self._current()
        if run is not None and self._before + run.counts.settled > self.settled:
            self.settled = self._before + run.counts.settled
            self.begin_again()
        if run is not None and is_over(run):
            self.finished[state_word(run)] += 1
            what = f"{state_word(run)} {run.failure}".strip()
            self.say(f"run {run.run_id}: {what}, step {run.step}, {run.counts.settled} settled")
            self._before = self.settled
            return True
        if run is not None and run.state == RUN_STATE_PAUSED:
            await self._resume(run)
        if time.monotonic() - self._counts_from > HUNG_S:
            await self._silent()
            self.begin_again()
        return False

    async def _current(self) -> Run | None:
        try:
            answer = await self.platform.tasksets.GetRun(GetRunRequest(run_id=self.current), timeout=_CALL_S)
        except AioRpcError:
            return None
        return answer.run

    async def _resume(self, run: Run) -> None:
        try:
            await self.platform.tasksets.ResumeRun(ResumeRunRequest(run_id=run.run_id), timeout=_CALL_S)
        except AioRpcError as error:
            self.say(f"run {run.run_id} paused itself and is not resumed yet: {error.code().name}")
        else:
            self.paused[run.run_id] += 1
            self.say(f"run {run.run_id} paused itself, and is resumed")

    async def _silent(self) -> None:
        """Nothing for HUNG_S: either `why` names what the run waits for, or it hangs."""
        try:
            request = ExplainRunRequest(run_id=self.current)
            answer = await self.platform.tasksets.ExplainRun(request, timeout=2 * _CALL_S)
        except AioRpcError as error:
            self.hung[self.current] = f"the planner does not answer: {error.code().name}"
        else:
            if answer.waiting_for:
                self.waited[answer.summary] += 1
            else:
                self.hung[self.current] = answer.summary
            self.say(f"run {self.current} settled nothing for {HUNG_S:g} s: {answer.summary}")
