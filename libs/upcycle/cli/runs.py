"""`upcycle runs`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import human, print_json, result_console
from upcycle.errors import UpcycleError
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run


class NoSuchRun(UpcycleError, LookupError):
    """`last` was asked for and there is no run."""

    kind = "no_such_run"


async def resolve_run(platform: Platform, run: str) -> str:
    """The run id that a person means; `last` is the newest."""
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest

    if run != "last":
        return run
    listed = await platform.tasksets.ListRuns(ListRunsRequest(limit=1), timeout=5)
    if not listed.runs:
        raise NoSuchRun("there is no run yet", "submit one with `upcycle eval` or `upcycle train`")
    return str(listed.runs[0].run_id)


async def runs(
    *,
    cancel: str | None = None,
    model: str = "",
    limit: int = 20,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """List runs, newest first.

    Parameters
    ----------
    cancel: cancel this run (or `last`) instead of listing.
    model: only runs of this model.
    limit: at most so many.
    as_json: one JSON line per run.
    """
    from grpc_edge import remote_errors
    from upcycle.api.taskset.v1.service_pb2 import CancelRunRequest, ListRunsRequest

    async with Platform() as platform, remote_errors():
        if cancel is not None:
            run_id = await resolve_run(platform, cancel)
            request = CancelRunRequest(run_id=run_id, reason="cancelled from the command line")
            listed = [(await platform.tasksets.CancelRun(request, timeout=10)).run]
            human().print(f"cancelled {run_id}")
        else:
            answer = await platform.tasksets.ListRuns(ListRunsRequest(limit=limit, model=model), timeout=10)
            listed = list(answer.runs)
    if as_json:
        for run in listed:
            print_json("run", run)
    else:
        result_console().print(run_table(listed))
    return Exit.OK


def run_table(listed: "list[Run]") -> object:
    """One row per run."""
    from rich.table import Table

    from upcycle.api.common.v1.common_pb2 import Purpose
    from upcycle.api.taskset.v1.taskset_pb2 import RunState

    table = Table("run", "purpose", "taskset", "model", "state", "episodes", "reward", "success", box=None)
    for run in listed:
        purpose = Purpose.Name(run.spec.purpose).removeprefix("PURPOSE_").lower()
        state = RunState.Name(run.state).removeprefix("RUN_STATE_").lower()
        progress = f"{run.counts.settled}/{run.counts.requested}"
        scores = (f"{run.reward_mean:.3f}", f"{run.success_rate:.1%}")
        table.add_row(run.run_id, purpose, run.spec.taskset, run.spec.policy.model, state, progress, *scores)
    return table
