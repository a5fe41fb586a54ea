"""Follows an evaluation on the platform: counts as the planner says them, and the attempts of each task."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import grpc

from upcycle.api.taskset.v1.service_pb2 import GetRunRequest, GetTasksetRequest
from upcycle.api.taskset.v1.taskset_pb2 import EPISODE_STATUS_GRADED, EPISODE_STATUS_PENDING
from upcycle.cli.eval_view import (
    MAX_MARKS,
    MISSING,
    SUCCEEDED,
    WRONG,
    EvalProgress,
    ShowEval,
    eval_view,
    marks_of,
)
from upcycle.cli.live_view import redraws
from upcycle.cli.output import human
from upcycle.cli.waiting_view import saying_what_it_waits_for
from upcycle.run_client import GRADED_STATES, follow_run, scores, state_word
from upcycle.tasks import exact_name, plain_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult, Run
    from upcycle.platform import Platform

ATTEMPTS_EVERY_S: Final = 2.0
"""Between two requests for the results of all episodes."""
_ASK_S: Final = 10.0


async def follow_evaluation(platform: "Platform", run_id: str, *, timeout_s: float) -> "Run":
    """Show how far an evaluation is until it is over; the run in its final state. Raises as follow_run
    does."""
    console = human()
    with eval_view(console) as show:
        follower = _EvaluationFollower(platform, run_id, show)
        await follower.ask_for_tasks()
        asking = None
        if redraws(console):
            asking = asyncio.create_task(follower.ask_for_attempts(), name=f"attempts/{run_id}")
        try:
            async with saying_what_it_waits_for(platform, run_id, timeout_s) as mark:

                def changed(run: "Run") -> None:
                    mark((run.state, run.counts.SerializeToString(deterministic=True)))
                    follower(run)

                run = await follow_run(platform, run_id, changed, timeout_s=timeout_s)
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.wait({asking})
        if asking is not None:
            await follower.ask_once()
        return run


class _EvaluationFollower:
    """Called with each change of the run. What is not answered is left out: the counts go on without it."""

    def __init__(self, platform: "Platform", run_id: str, show: ShowEval) -> None:
        self._platform, self._run_id, self._show = platform, run_id, show
        self._run: Run | None = None
        self._slugs: list[str] = []
        self._attempts: dict[str, str] = {}

    def __call__(self, run: "Run") -> None:
        self._run = run
        self._show(replace(progress_of(run, len(self._slugs)), attempts=self._attempts))

    async def ask_for_tasks(self) -> None:
        """Whose number is the denominator."""
        with suppress(grpc.aio.AioRpcError):
            request = GetRunRequest(run_id=self._run_id)
            run = (await self._platform.tasksets.GetRun(request, timeout=_ASK_S)).run
            asked = GetTasksetRequest(name=_exact_taskset(run))
            found = await self._platform.tasksets.GetTaskset(asked, timeout=_ASK_S)
            self._slugs = [task.slug for task in found.taskset.tasks]

    async def ask_for_attempts(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.ask_once()
            await asyncio.sleep(ATTEMPTS_EVERY_S)

    async def ask_once(self) -> None:
        """The results, unless they are more than are shown."""
        run = self._run
        if run is None or not 0 < num_planned(run, len(self._slugs)) <= MAX_MARKS:
            return
        with suppress(grpc.aio.AioRpcError):
            request = GetRunRequest(run_id=self._run_id, include_results=True)
            results = (await self._platform.tasksets.GetRun(request, timeout=_ASK_S)).results
            self._attempts = marks_of(self._slugs, run.spec.group_size, _ended(results))
            self(self._run or run)


def num_planned(run: "Run", num_tasks: int) -> int:
    """Episodes of the whole evaluation. num_tasks: 0 where it is not known: then those requested so far."""
    return num_tasks * run.spec.group_size or run.counts.requested


def progress_of(run: "Run", num_tasks: int) -> EvalProgress:
    """As the planner says it. An episode that failed and is played again is an error and not graded."""
    states = run.counts.by_state
    reward, success, _ = scores(run)
    word = state_word(run)
    return EvalProgress(
        num_planned=num_planned(run, num_tasks),
        num_graded=sum(states.get(state, 0) for state in GRADED_STATES),
        num_errors=states.get("failed", 0),
        reward=reward,
        success=success,
        phases={"in play": states.get("planned", 0), "in grading": states.get("sampled", 0)},
        state="" if word == "running" else word,
    )


def _ended(results: Sequence["EpisodeResult"]) -> Mapping[tuple[str, int], str]:
    return {
        (one.task_slug, one.member): (SUCCEEDED if one.success else WRONG)
        if one.status == EPISODE_STATUS_GRADED
        else MISSING
        for one in results
        if one.status != EPISODE_STATUS_PENDING
    }


def _exact_taskset(run: "Run") -> str:
    name = plain_name(run.spec.taskset)
    return exact_name(name, run.taskset_revision) if run.taskset_revision else run.spec.taskset
