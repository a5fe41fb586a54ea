"""Where the episodes of an evaluation in this process stay: on the platform that is found, else in a file."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from upcycle.external.evaluating import ExternalEpisode, ExternalOptions, run_of
from upcycle.external.sending import PlayedEvaluation, SentTrajectories, send_to_found
from upcycle.images import row_with_files
from upcycle.local_runs import new_run_id
from upcycle.playing.blame import Blame
from upcycle.playing.episode import PlayedEpisode
from upcycle.reporting.external_rows import PLANNED, PlannedEvaluation
from upcycle.reporting.trajectory_files import FOLDER, NAME
from upcycle.results import Run
from upcycle.runtimes import ChosenRuntime, is_local
from upcycle.tasks import Taskset
from upcycle.trajectory_lines.writing import line_of_played
from upcycle.usage import NONE

log: Final = logging.getLogger(__name__)


def planned_evaluation(
    taskset: Taskset, options: ExternalOptions, sampling: Mapping[str, Any]
) -> PlannedEvaluation:
    """What each line of its file says that was asked for."""
    from upcycle.environment.source_files import source_digest

    path = taskset.environment.path if is_local(options.runtime) else ""  # another program's code judged
    return PlannedEvaluation(
        taskset=taskset.name,
        split=taskset.split,
        taskset_digest=taskset.digest,
        source_digest=source_digest(path) if path else "",
        group=options.group,
        num_episodes=len(taskset.tasks) * options.group,
        sampling={name: value for name, value in sampling.items() if value is not None},
    )


async def keep_episodes(
    evaluation: PlayedEvaluation, planned: PlannedEvaluation, runs: Sequence[Run]
) -> list[Run]:
    """The runs, with the ids of their trajectories where a platform keeps them. What it does not keep is
    written to a trajectories file in the working directory; a log line says why where there is a platform."""
    sent = await send_to_found(evaluation) or SentTrajectories()
    if sent.left:
        log.warning("%s: %s", evaluation.run_id, sent.why_left)
    if len(sent.ids) < sum(not run.is_error for run in runs) or not sent.ids:
        _write(evaluation, planned)
    return [replace(run, trace_id=sent.ids.get(run.episode_id, "")) for run in runs]


@dataclass(frozen=True, slots=True)
class KeptPlay:
    """name: by which `upcycle trajectories show` finds the episode; "" where it could not be kept. is_sent: a
    platform keeps it. why_left: why one that was found does not."""

    name: str
    is_sent: bool = False
    why_left: str = ""


async def keep_play(episode: PlayedEpisode, taskset: Taskset, agent: str, runtime: ChosenRuntime) -> KeptPlay:
    """One episode of `upcycle play`, kept as one of an evaluation is. taskset: that has its task, and
    says whether it is held out. agent: who played. runtime: where its environment ran."""
    run_id, task, failure = new_run_id(), episode.task, episode.failure
    blame = Blame()
    if failure is not None:
        blame = Blame(failure.kind, "", f"{failure.during}: {failure.traceback.rstrip() or failure.message}")
    run = run_of(episode, run_id, f"{run_id}/{task.slug}/0", blame, NONE)
    alone = Taskset(taskset.name, [task], taskset.split)
    one = ExternalEpisode(run, line_of_played(episode, run, None, agent), episode, 0)
    played = PlayedEvaluation(run_id, agent, alone, 1, [one])
    sent = await send_to_found(played) or SentTrajectories()
    if run.episode_id in sent.ids:
        return KeptPlay(sent.ids[run.episode_id], is_sent=True)
    is_written = _write(played, planned_evaluation(alone, ExternalOptions(runtime=runtime), {}))
    return KeptPlay(run.episode_id if is_written else "", why_left=sent.why_left)


def _write(evaluation: PlayedEvaluation, planned: PlannedEvaluation) -> bool:
    """The result is worth more than its file: where it cannot be written, a log line says so."""
    path = Path(FOLDER) / evaluation.run_id / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {**row_with_files(one.row, path.parent), PLANNED: planned.to_json()}
            for one in evaluation.episodes
        ]
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    except OSError as error:
        log.warning("%s: what was said is not kept: %s", evaluation.run_id, error)
        return False
    log.info("%s: what was said is in %s", evaluation.run_id, path)
    return True
