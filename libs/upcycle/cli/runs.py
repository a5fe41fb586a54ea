"""`upcycle runs`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.errors import UpcycleError
from upcycle.platform import Platform, PlatformNotFound
from upcycle.reporting.mix_texts import mix_lines
from upcycle.reporting.new_task_texts import new_tasks_line
from upcycle.run_client import completed, follow_run, scores, state_word
from upcycle.tasks import plain_name
from upcycle.wire import usage_of
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec

_LOOK_BACK: Final = 50
Action = Literal["list", "pause", "resume", "stop", "cancel"]
_SAID = {
    "pause": "is paused: nothing new is dispatched, what is in flight settles",
    "resume": "goes on",
    "stop": "ends early: its trainer finishes the step under way and saves the final checkpoint",
    "cancel": "is cancelled: nothing new is planned, and a step under way may still end",
}


class NoSuchRun(UpcycleError, LookupError):
    """An action names no run, or `last` and there is none."""

    kind = "no_such_run"


async def resolve_run(platform: Platform, run: str) -> str:
    """The run id that a person means; `last` is the newest that somebody asked for, and not what gate, watch
    and tracking evaluate meanwhile."""
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest

    if run != "last":
        return run
    request = ListRunsRequest(limit=_LOOK_BACK, asked_for=True)
    listed = (await platform.tasksets.ListRuns(request, timeout=5)).runs
    if not listed:
        raise NoSuchRun("there is no run yet", "submit one with `upcycle eval` or `upcycle train`")
    return str(next((one for one in listed if not _is_by_platform(one.spec)), listed[0]).run_id)


async def is_run_of_platform(platform: Platform, run_id: str) -> bool:
    """Whether gate, watch or tracking ordered this run; no, where the planner does not say."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.errors import Unavailable
    from upcycle.rpc import RemoteError, remote_errors

    try:
        with remote_errors():
            found = await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=5)
    except (RemoteError, Unavailable):
        return False
    return _is_by_platform(found.run.spec)


@contextmanager
def as_run_id(name: str) -> Iterator[None]:
    """Without a platform a name may be a mistyped file: the refusal says what it was taken for."""
    try:
        yield
    except PlatformNotFound as error:
        if name == "last":
            raise
        raise PlatformNotFound(
            f"{name:.80} is no file, and as the id of a run: {error.message}", error.hint
        ) from error


def _is_by_platform(spec: "RunSpec") -> bool:
    from upcycle.tracking import is_by_platform

    return is_by_platform(is_pair=spec.HasField("against_version"), label=spec.label)


def refuse_local_run(run: str) -> None:
    """Raises NoSuchRun for an evaluation in one process: the planner does not know it."""
    from upcycle.local_runs import is_local_run

    if is_local_run(run):
        raise NoSuchRun(
            f"{run!r:.80} was played in the process of its command: it is no run of the platform",
            f"read it with `upcycle view {run:.80}` or `upcycle trajectories list --run {run:.80}`",
        )


async def check_run(platform: Platform, run: str) -> None:
    """Raises NoSuchRun, with the platform's own words, for an id that no run has."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.rpc import RemoteNotFound, remote_errors

    try:
        with remote_errors():
            await platform.tasksets.GetRun(GetRunRequest(run_id=await resolve_run(platform, run)), timeout=10)
    except RemoteNotFound as error:
        raise NoSuchRun(error.message or str(error)) from error


async def runs(
    action: Action = "list",
    run: str | None = None,
    *,
    cancel: str | None = None,
    wait: bool = False,
    model: str = "",
    limit: int = 20,
    all_runs: Annotated[bool, Parameter(name="--all", negative="")] = False,
    as_json: JsonFlag = False,
) -> int:
    """List runs that somebody asked for, newest first; pause, resume, stop or cancel RUN.

    A paused run dispatches nothing new until it is resumed; it outlives restarts. A training run that is
    stopped finishes its step, saves a final checkpoint that its gate judges, and is complete; one that is
    cancelled is not.

    :param action: what to do.
    :param run: id of the run, or `last`.
    :param cancel: the same as `cancel RUN`.
    :param wait: after `stop` or `cancel`, wait until the run is over; exit with 1 when it did not complete.
    :param model: list only runs of this model.
    :param limit: list at most so many.
    :param all_runs: list also what gate, watch and tracking evaluate.
    :param as_json: one JSON line per run.
    """
    action, run = _meant(action, run, cancel)
    async with Platform() as platform:
        if run is None:
            listed = await _listed(platform, model, limit, asked_for=not all_runs)
        else:
            listed = [await _steered(platform, action, await resolve_run(platform, run), wait=wait)]
    _print(listed, as_json)
    if run is not None and not as_json:
        _print_more(listed[0])
    return Exit.FAILED if action == "stop" and wait and not completed(listed[0]) else Exit.OK


def _print_more(run: "Run") -> None:
    """Of one run alone: its mix, its guided groups, what it used."""
    guided = f"guided: {run.guided_groups} of {amount(run.groups, 'group')}" if run.guided_groups else ""
    new = f"new tasks: {line}" if (line := new_tasks_line(run)) else ""
    for line in filter(None, (*mix_lines(run), guided, new, str(usage_of(run.usage)))):
        print(line)


def _meant(action: Action, run: str | None, cancel: str | None) -> tuple[Action, str | None]:
    """What to do, to which run; None: to list. Raises NoSuchRun."""
    if cancel is not None:
        action, run = "cancel", cancel
    if action != "list" and run is None:
        raise NoSuchRun(f"`upcycle runs {action}` needs a run", "name its id, or `last`")
    if run is not None:
        refuse_local_run(run)
    return action, run


async def _listed(platform: Platform, model: str, limit: int, *, asked_for: bool) -> "list[Run]":
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest

    request = ListRunsRequest(limit=limit, model=model, asked_for=asked_for)
    return list((await platform.tasksets.ListRuns(request, timeout=10)).runs)


async def _steered(platform: Platform, action: Action, run_id: str, *, wait: bool) -> "Run":
    found = await _asked(platform, action, run_id)
    if action != "list":
        human().print(f"{run_id} {_SAID[action]}", markup=False)
    if wait and action in ("stop", "cancel"):
        found = await follow_run(platform, run_id, timeout_s=3600)
    return found


async def _asked(platform: Platform, action: Action, run_id: str) -> "Run":
    from upcycle.api.taskset.v1 import service_pb2 as pb

    why, tasksets = f"{action} from the command line", platform.tasksets
    match action:
        case "pause":
            return (await tasksets.PauseRun(pb.PauseRunRequest(run_id=run_id), timeout=10)).run
        case "resume":
            return (await tasksets.ResumeRun(pb.ResumeRunRequest(run_id=run_id), timeout=10)).run
        case "stop":
            return (await tasksets.StopRun(pb.StopRunRequest(run_id=run_id, reason=why), timeout=10)).run
        case "cancel":
            return (await tasksets.CancelRun(pb.CancelRunRequest(run_id=run_id, reason=why), timeout=10)).run
        case "list":
            return (await tasksets.GetRun(pb.GetRunRequest(run_id=run_id), timeout=10)).run


def _print(listed: "list[Run]", as_json: bool) -> None:
    if not as_json:
        out = result_console()
        out.print(run_table(listed))
        for run in listed:
            if run.failure:
                out.print(f"{run.run_id} {state_word(run)}: {run.failure}", markup=False, soft_wrap=True)
        return
    for run in listed:
        print_json("run", run)


def run_table(listed: "list[Run]") -> object:
    """One row per run."""
    from rich.table import Table

    from upcycle.api.common.v1.common_pb2 import Purpose

    columns = ("run", "purpose", "taskset", "model", "state", "steps", "episodes", "reward", "success")
    table = Table(*columns, box=None)
    for run in listed:
        purpose = Purpose.Name(run.spec.purpose).removeprefix("PURPOSE_").lower()
        progress = f"{run.counts.settled}/{run.counts.requested}"
        what = (plain_name(run.spec.taskset) or "(recorded sessions)", run.spec.policy.model)
        table.add_row(run.run_id, purpose, *what, state_word(run), _steps(run), progress, *scores(run)[:2])
    return table


def _steps(run: "Run") -> str:
    """`7/100`, or `7/no limit`; empty for what does not train."""
    if not run.spec.HasField("training"):
        return ""
    return f"{run.step}/{run.spec.training.steps or 'no limit'}"
