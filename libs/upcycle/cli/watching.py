"""Submitting a run and following it to its end: what `eval`, `train` and `demo` share."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from upcycle.cli.output import human
from upcycle.errors import UpcycleError
from upcycle.tasks import exact_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec
    from upcycle.platform import Platform
    from upcycle.tasks import Taskset

FINAL_STATES = ("RUN_STATE_COMPLETED", "RUN_STATE_FAILED", "RUN_STATE_CANCELLED")


class AmbiguousTaskset(UpcycleError, ValueError):
    """A tasks file defines several tasksets and none was named."""

    kind = "ambiguous_taskset"


def completed(run: "Run") -> bool:
    """It did all that it was asked for."""
    from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED

    return bool(run.state == RUN_STATE_COMPLETED)


def state_word(run: "Run") -> str:
    """Its state, as people read it."""
    from upcycle.api.taskset.v1.taskset_pb2 import RunState

    return str(RunState.Name(run.state)).removeprefix("RUN_STATE_").lower()


async def register(platform: "Platform", source: str, name: str | None = None, *, exact: bool = True) -> str:
    """Register the taskset(s) of a tasks file, or take `source` as a registered name; the name to run.

    Of a file it is that of exactly these tasks, `name@2`, or without `exact` the name alone: tasks that
    changed since they were registered are a new revision. A registered name stays as it is.

    Raises AmbiguousTaskset when the file defines several and `name` says nothing.
    """
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest, RegisterTasksetRequest
    from upcycle.evaluation import REGISTER_TIMEOUT_S
    from upcycle.wire import taskset_to_wire

    path = Path(source)
    if path.suffix not in (".py", ".json", ".jsonl"):
        await platform.tasksets.GetTaskset(GetTasksetRequest(name=source), timeout=10)
        return source
    found, names = load_all(path), dict[str, str]()
    for taskset in found.values():
        request = RegisterTasksetRequest(taskset=taskset_to_wire(taskset))
        done = await platform.tasksets.RegisterTaskset(request, timeout=REGISTER_TIMEOUT_S)
        names[taskset.name] = exact_name(done.name, done.revision) if exact else done.name
        if done.created and done.revision > 1:
            human().print(f"{done.name}: revision {done.revision}, {done.num_tasks} tasks", markup=False)
    if name is None and len(found) > 1:
        raise AmbiguousTaskset(
            f"{path} defines {len(found)} tasksets", f"name one: --taskset {' | '.join(found)}"
        )
    chosen = name or next(iter(found))
    if chosen not in found:
        raise AmbiguousTaskset(f"{path} has no taskset {chosen!r}", f"it has {', '.join(found)}")
    return names[chosen]


def load_all(path: Path) -> "dict[str, Taskset]":
    """Every taskset of a tasks file, by name."""
    from upcycle.tasks import Taskset
    from upcycle.taskset_files import tasksets_in

    if path.suffix == ".py":
        return tasksets_in(path)
    taskset = Taskset.load(path)
    return {taskset.name: taskset}


async def submit(platform: "Platform", spec: "RunSpec", *, request_id: str | None = None) -> "Run":
    """Submit once; the same request id never makes a second run."""
    from upcycle.api.taskset.v1.service_pb2 import SubmitRunRequest

    request = SubmitRunRequest(request_id=request_id or uuid4().hex, spec=spec)
    return (await platform.tasksets.SubmitRun(request, timeout=30)).run


async def watch(platform: "Platform", run_id: str, *, timeout_s: float) -> AsyncIterator["Run"]:
    """The run each time it changes, its final state last; reconnects while the deadline lasts."""
    import asyncio

    import grpc

    from upcycle.api.taskset.v1.service_pb2 import WatchRunRequest
    from upcycle.api.taskset.v1.taskset_pb2 import RunState

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            call = platform.tasksets.WatchRun(WatchRunRequest(run_id=run_id), timeout=deadline - loop.time())
            async for update in call:
                yield update.run
                if RunState.Name(update.run.state) in FINAL_STATES:
                    return
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or loop.time() > deadline:
                raise
        await asyncio.sleep(0.3)


async def follow(
    platform: "Platform", run_id: str, on_change: Callable[["Run"], None], *, timeout_s: float
) -> "Run":
    """Call `on_change` at each change and return the run in its final state."""
    last: Run | None = None
    async for run in watch(platform, run_id, timeout_s=timeout_s):
        last = run
        on_change(run)
    if last is None:
        raise UpcycleError(f"run {run_id} sent no state", "is scenario_runner healthy? see `upcycle doctor`")
    return last
