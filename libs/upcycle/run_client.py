"""Tasksets and runs of a platform, as a client: register, submit, watch, follow.

The SDK and the command line both use these functions, so they behave alike. A name that is taken: other tasks
under the name of a taskset become its next revision; a taskset of another split or environment is refused
(RemoteConflict), and the message says what to change. The tasks of `upcycle.eval(task)` get a name made of
their content, which only equal tasks share.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from upcycle.errors import Unavailable, UpcycleError
from upcycle.tasks import Taskset, exact_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec
    from upcycle.platform import Platform

REGISTER_TIMEOUT_S: Final = 120.0
"""Registering imports the environment on the runner's side."""
SUBMIT_TIMEOUT_S: Final = 60.0
RECONNECT_S: Final = 0.3
_MODEL_TIMEOUT_S: Final = 5.0
GRADED_STATES: Final = ("graded", "trained", "evaluated", "excluded")
_FINAL_STATES: Final = ("RUN_STATE_COMPLETED", "RUN_STATE_FAILED", "RUN_STATE_CANCELLED")


@dataclass(frozen=True, slots=True)
class RegisteredTaskset:
    """A taskset as the platform knows it. is_new: these tasks were not registered before."""

    name: str
    revision: int
    num_tasks: int
    is_new: bool

    @property
    def exact_name(self) -> str:
        """`name@2`: exactly these tasks, whatever is registered under the name later."""
        return exact_name(self.name, self.revision)


def new_request_id(what: str) -> str:
    """A fresh request id. A request that is sent again keeps its id, so the service executes it once."""
    return f"{what}-{uuid.uuid4().hex}"


def state_word(run: "Run") -> str:
    """The state of a run as people read it: pending, running, paused, completed, failed, cancelled."""
    from upcycle.api.taskset.v1.taskset_pb2 import RunState

    return str(RunState.Name(run.state)).removeprefix("RUN_STATE_").lower()


def scores(run: "Run") -> tuple[str, str, str]:
    """Mean reward, success rate and number of episodes as text; without a graded episode there is no mean."""
    if not any(run.counts.by_state.get(state) for state in GRADED_STATES):
        return "–", "–", f"0 of {run.counts.settled} graded" if run.counts.settled else "0 episodes"
    return f"{run.reward_mean:.3f}", f"{run.success_rate:.1%}", amount(run.counts.settled, "episode")


def completed(run: "Run") -> bool:
    """The run did all that it was asked for."""
    from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED

    return bool(run.state == RUN_STATE_COMPLETED)


def is_over(run: "Run") -> bool:
    """The run completed, failed or was cancelled."""
    from upcycle.api.taskset.v1.taskset_pb2 import RunState

    return RunState.Name(run.state) in _FINAL_STATES


async def register_taskset(platform: "Platform", taskset: Taskset) -> RegisteredTaskset:
    """Register a taskset. Other tasks under a known name become its newest revision.

    Raises RemoteConflict for a name of another split or environment, RemoteRefused for a task that is on the
    other side (held out, or training data); both say what to change.
    """
    from upcycle.api.taskset.v1.service_pb2 import RegisterTasksetRequest
    from upcycle.rpc import remote_errors
    from upcycle.wire import taskset_to_wire

    request = RegisterTasksetRequest(taskset=taskset_to_wire(taskset))
    with remote_errors(f"register taskset {taskset.name!r}"):
        done = await platform.tasksets.RegisterTaskset(request, timeout=REGISTER_TIMEOUT_S)
    return RegisteredTaskset(done.name, done.revision, done.num_tasks, done.created)


async def require_model(platform: "Platform", model: str) -> None:
    """Ask for the model before a taskset is registered for it: what is refused changes nothing. A registry
    that does not answer refuses nothing: the planner asks it again. Raises RemoteNotFound."""
    from upcycle.api.registry.v1.service_pb2 import GetModelRequest
    from upcycle.rpc import RemoteError, RemoteNotFound, remote_errors

    try:
        with remote_errors(f"submit a run of {model!r}"):
            await platform.registry.GetModel(GetModelRequest(model=model), timeout=_MODEL_TIMEOUT_S)
    except RemoteNotFound:
        raise
    except (RemoteError, Unavailable):
        return


async def submit_run(platform: "Platform", spec: "RunSpec", *, request_id: str | None = None) -> "Run":
    """Submit a run; the same request id never makes a second one. Raises Unavailable and RemoteError."""
    from upcycle.api.taskset.v1.service_pb2 import SubmitRunRequest
    from upcycle.rpc import remote_errors

    request = SubmitRunRequest(request_id=request_id or new_request_id("submit"), spec=spec)
    with remote_errors(f"submit a run of {spec.policy.model!r}"):
        return (await platform.tasksets.SubmitRun(request, timeout=SUBMIT_TIMEOUT_S)).run


async def watch_run(platform: "Platform", run_id: str, *, timeout_s: float) -> AsyncIterator["Run"]:
    """The run each time it changes, its final state last. Connects again while the planner is unavailable.

    Raises CallTimedOut when the run is not over within timeout_s, and RemoteError.
    """
    from upcycle.api.taskset.v1.service_pb2 import WatchRunRequest
    from upcycle.rpc import CallTimedOut, remote_errors

    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while True:
        left_s = give_up_at - loop.time()
        if left_s <= 0:
            raise CallTimedOut(f"{run_id} was not over within {timeout_s:g} s", hint=f"upcycle why {run_id}")
        try:
            with remote_errors(f"watch {run_id}"):
                async for update in platform.tasksets.WatchRun(
                    WatchRunRequest(run_id=run_id), timeout=left_s
                ):
                    yield update.run
                    if is_over(update.run):
                        return
        except Unavailable:
            pass  # the deadline of the call is the deadline of the watch: the next turn of the loop sees it
        await asyncio.sleep(min(RECONNECT_S, max(0.0, give_up_at - loop.time())))


async def follow_run(
    platform: "Platform",
    run_id: str,
    on_change: Callable[["Run"], None] = lambda run: None,
    *,
    timeout_s: float,
) -> "Run":
    """Call `on_change` at each change and return the run in its final state. Raises as watch_run does."""
    last: Run | None = None
    async for run in watch_run(platform, run_id, timeout_s=timeout_s):
        last = run
        on_change(run)
    if last is None:
        raise UpcycleError(f"run {run_id} sent no state", "is scenario_runner healthy? see `upcycle doctor`")
    return last
