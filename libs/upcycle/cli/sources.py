"""`upcycle train --from RUN…`: evaluations whose graded groups train."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.platform import Platform
from upcycle.run_specs import SourcesRefused
from upcycle.tasks import plain_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, SourceReport

_LOOK_BACK = 50


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Evaluations that train."""

    from_: Annotated[tuple[str, ...], Parameter(name="--from", negative="", consume_multiple=True)] = ()
    """finished evaluations whose graded groups are the first batches; `last` is the model's newest of
    split train. Without --taskset the run goes on with the taskset of the first one."""
    no_sampling: Annotated[bool, Parameter(negative="")] = False
    """sample nothing: train only on what --from and `upcycle eval --trainable` bring."""
    no_step_groups: int | None = None
    """groups in a row that may end without a step before the run fails; default max(8 × --prompts, 64)."""

    @property
    def is_asked(self) -> bool:
        """Any of these options was given."""
        return bool(self.from_) or self.no_sampling or self.no_step_groups is not None


NO_SOURCES: Final = Sources()


def check(sources: Sources, *, is_sft: bool, attaches: bool) -> None:
    """Refuse what the options alone rule out. Raises SourcesRefused."""
    if attaches and sources.is_asked:
        raise SourcesRefused(
            "--attach follows a run that was started before: --from, --no-sampling and --no-step-groups "
            "belong to its start",
            "leave them out, or leave --attach out and start a new run",
        )
    if sources.is_asked and is_sft:
        raise SourcesRefused(
            "--from, --no-sampling and --no-step-groups are for GRPO, --sft and --sft-from are for SFT",
            "give one or the other",
        )


async def resolve(platform: Platform, model: str, names: Iterable[str]) -> list[str]:
    """Run ids of what a person named, each once; `last` is the model's newest evaluation of split train.

    Raises SourcesRefused when there is none.
    """
    named = list(dict.fromkeys(names))
    found = [await _newest(platform, model) if name == "last" else name for name in named]
    return list(dict.fromkeys(found))


async def _newest(platform: Platform, model: str) -> str:
    from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
    from upcycle.train.running import train_tasksets

    allowed = await train_tasksets(platform)
    listed = await platform.tasksets.ListRuns(ListRunsRequest(limit=_LOOK_BACK, model=model), timeout=10)
    for run in listed.runs:
        if run.spec.purpose == PURPOSE_EVAL and plain_name(run.spec.taskset) in allowed:
            return str(run.run_id)
    raise SourcesRefused(
        f"--from last: none of the newest {len(listed.runs)} runs of {model!r} "
        "evaluates a taskset of split train",
        f"measure one: upcycle eval TASKS {model} --group 8",
    )


def begun_lines(run: "Run") -> list[str]:
    """What a run that was just submitted takes from its sources, and what it leaves out, by reason."""
    return [_begun(source) for source in run.sources]


def _begun(source: "SourceReport") -> str:
    from upcycle.cli.group_outcomes import counted

    fit = source.groups - sum(source.left_out.values())
    left = f"; left out: {counted(source.left_out)}" if source.left_out else ""
    return f"from {source.run_id}: {fit} of {source.groups} groups can train{left}"
