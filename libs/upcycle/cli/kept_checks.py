"""`upcycle check --record` and `--against`: keep on the platform what an attack on the graders found, and
read from it what a model answers most."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.printable import one_line

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import TasksetCheck, TasksetSummary
    from upcycle.checking import Validation
    from upcycle.tasks import Taskset

MAX_ANSWERS: Final = 3
"""Most frequent answers of a model that are played."""
_READ: Final = 60
"""Newest graded trajectories whose answers are counted."""
_LISTED: Final = 1000
"""Newest graded trajectories of the model among which those of these tasks are looked for."""
_MAX_FINDINGS: Final = 20
"""The planner takes no more, and no longer ones."""
_MAX_FINDING_CHARS: Final = 500
_ASK_S: Final = 30.0


class NothingToAttackWith(UpcycleError, LookupError):
    """A model has given no answer to these tasks."""

    kind = "nothing_to_attack_with"


class NotRegistered(UpcycleError, LookupError):
    """The platform knows the taskset with other tasks."""

    kind = "not_registered"


async def frequent_answers(model: str, tasks: Collection[str]) -> list[str]:
    """What a model answered most to the tasks with these digests, in its newest graded trajectories. Raises
    RemoteNotFound for an unknown model, NothingToAttackWith."""
    from upcycle.api.trajectory.v1.service_pb2 import (
        GetTrajectoryRequest,
        ListTrajectoriesRequest,
        TrajectoryFilter,
    )
    from upcycle.rpc import remote_errors
    from upcycle.run_client import require_model

    counts = Counter[str]()
    async with Platform() as platform:
        await require_model(platform, model)
        request = ListTrajectoriesRequest(
            filter=TrajectoryFilter(model=model, min_reward=0.0), page_size=_LISTED
        )
        with remote_errors(f"list trajectories of {model!r}"):
            listed = await platform.trajectories.ListTrajectories(request, timeout=_ASK_S)
            mine = [one for one in listed.trajectories if one.episode.task_digest in tasks][:_READ]
            for one in mine:
                wanted = GetTrajectoryRequest(trajectory_id=one.episode.trajectory_id)
                found = await platform.trajectories.GetTrajectory(wanted, timeout=_ASK_S)
                counts[found.body.answer] += 1
    answers = [answer for answer, _ in counts.most_common() if answer.strip()]
    if not answers:
        raise NothingToAttackWith(
            f"model {model!r} gave no answer to these tasks in its newest {_LISTED} graded trajectories",
            "have it play them first: upcycle eval FILE MODEL",
        )
    return answers[:MAX_ANSWERS]


async def require_registered(taskset: "Taskset") -> None:
    """Raises RemoteNotFound for a name that the platform does not know, NotRegistered for other tasks."""
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
    from upcycle.rpc import remote_errors

    async with Platform() as platform:
        with remote_errors(f"find taskset {taskset.name!r}"):
            wanted = GetTasksetRequest(name=taskset.name, with_summaries=True)
            found = await platform.tasksets.GetTaskset(wanted, timeout=_ASK_S)
    if taskset.digest not in {one.digest for one in found.revisions}:
        raise NotRegistered(
            f"no revision of taskset {taskset.name!r} on the platform has these tasks "
            f"(digest {taskset.digest[:12]!r})",
            f"register them first: upcycle sync tasks FILE {taskset.name}",
        )


async def keep(taskset: "Taskset", seen: "Validation", model: str) -> tuple[int, "TasksetSummary"]:
    """(the revision that has these tasks, what is kept of it). Raises RemoteNotFound where none has."""
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest, RecordTasksetCheckRequest
    from upcycle.rpc import remote_errors
    from upcycle.tasks import exact_name

    request = RecordTasksetCheckRequest(
        taskset=taskset.name, taskset_digest=taskset.digest, check=_attack(taskset, seen, model)
    )
    async with Platform() as platform:
        with remote_errors(f"keep the check of taskset {taskset.name!r}"):
            kept = await platform.tasksets.RecordTasksetCheck(request, timeout=_ASK_S)
            wanted = GetTasksetRequest(name=exact_name(taskset.name, kept.revision), with_summaries=True)
            found = await platform.tasksets.GetTaskset(wanted, timeout=_ASK_S)
    return kept.revision, next(one for one in found.revisions if one.revision == kept.revision)


def _attack(taskset: "Taskset", seen: "Validation", model: str) -> "TasksetCheck":
    from upcycle.api.taskset.v1.taskset_pb2 import TASKSET_CHECK_KIND_ATTACK, TasksetCheck
    from upcycle.environment.source_files import source_digest

    return TasksetCheck(
        kind=TASKSET_CHECK_KIND_ATTACK,
        model_family=model,
        source_digest=source_digest(Path(taskset.environment.path)),
        num_tasks=seen.num_given,
        num_looked=seen.num_tasks,
        num_plays=seen.num_plays,
        num_findings=len(seen.findings),
        findings=_sentences([f"{one.kind}: {one}" for one in seen.findings]),
        stopped=one_line(seen.stopped or _part(seen))[:_MAX_FINDING_CHARS],
    )


def _sentences(findings: Sequence[str]) -> list[str]:
    return [one_line(one)[:_MAX_FINDING_CHARS] for one in findings[:_MAX_FINDINGS]]


def _part(seen: "Validation") -> str:
    return f"--limit {seen.num_tasks}" if seen.num_tasks < seen.num_given else ""
