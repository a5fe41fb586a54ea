"""`upcycle train --from RUN…`: evaluations whose graded groups train."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from upcycle.errors import SourcesRefused
from upcycle.platform import Platform
from upcycle.tasks import plain_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, SourceReport

_LOOK_BACK = 50


async def resolve(platform: Platform, model: str, names: Iterable[str]) -> list[str]:
    """Run ids of what a person named, each once; `last` is the model's newest evaluation of split train.

    Raises SourcesRefused when there is none.
    """
    found = [await _newest(platform, model) if name == "last" else name for name in dict.fromkeys(names)]
    return list(dict.fromkeys(found))


async def _newest(platform: Platform, model: str) -> str:
    from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
    from upcycle.train.running import train_tasksets

    allowed = await train_tasksets(platform)
    request = ListRunsRequest(limit=_LOOK_BACK, model=model, asked_for=True)
    listed = await platform.tasksets.ListRuns(request, timeout=10)
    for run in listed.runs:
        if run.spec.purpose == PURPOSE_EVAL and plain_name(run.spec.taskset) in allowed:
            return str(run.run_id)
    newest = f"none of the newest {amount(len(listed.runs), 'run')} of {model!r}"
    raise SourcesRefused(
        f"--from last: {newest} evaluates a taskset of split train"
        if listed.runs
        else f"--from last: {model!r} has no run yet",
        f"measure one: upcycle eval TASKS {model} --group 8",
    )


def begun_lines(run: "Run") -> list[str]:
    """What a run that was just submitted takes from its sources, and what it leaves out, by reason."""
    lines = [_begun(source) for source in run.sources]
    if run.spec.sessions_idle_s:
        lines.append(
            f"sessions {run.spec.sessions} are taken as they are graded, until none that can train came for "
            f"{run.spec.sessions_idle_s} s"
        )
    return lines


def _begun(source: "SourceReport") -> str:
    from upcycle.cli.group_outcomes import counted

    fit = source.groups - sum(source.left_out.values())
    left = f"; left out: {counted(source.left_out)}" if source.left_out else ""
    single = f", {source.single} of them single sessions" if source.single else ""
    return f"from {source.run_id}: {fit} of {source.groups} groups can train{single}{left}"
