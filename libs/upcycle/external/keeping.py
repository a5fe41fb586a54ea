"""Where the episodes of an evaluation in this process stay: on the platform that is found, else in a file."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from upcycle.external.evaluating import ExternalOptions
from upcycle.external.sending import PlayedEvaluation, SentTrajectories, send_to_found
from upcycle.reporting.external_rows import PLANNED, PlannedEvaluation
from upcycle.reporting.trajectory_files import FOLDER, NAME
from upcycle.results import Run
from upcycle.tasks import Taskset

log: Final = logging.getLogger(__name__)


def planned_evaluation(
    taskset: Taskset, options: ExternalOptions, sampling: Mapping[str, Any]
) -> PlannedEvaluation:
    """What each line of its file says that was asked for."""
    from upcycle.environment.source_files import source_digest

    path = taskset.environment.path
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


def _write(evaluation: PlayedEvaluation, planned: PlannedEvaluation) -> None:
    """The result is worth more than its file: where it cannot be written, a log line says so."""
    path = Path(FOLDER) / evaluation.run_id / NAME
    rows = ({**one.row, PLANNED: planned.to_json()} for one in evaluation.episodes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    except OSError as error:
        log.warning("%s: what was said is not kept: %s", evaluation.run_id, error)
    else:
        log.info("%s: what was said is in %s", evaluation.run_id, path)
