"""Episodes of an evaluation in this process, as they end: in its file, and on the terminal."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from upcycle.cli.eval_view import EvalCounts, EvalProgress, ShowEval, mark_of, marks_of
from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.external_rows import PLANNED, PlannedEvaluation, episode_row_of
from upcycle.reporting.shown_answers import TaskSecrets

if TYPE_CHECKING:
    from upcycle.external.evaluating import ExternalEpisode
    from upcycle.external.resuming import KeptEpisodes
    from upcycle.results import Run
    from upcycle.tasks import Taskset


class ExternalProgress:
    """Writes each episode as it ends, and says how far it is. What an earlier command wrote stays until the
    first one, that of an evaluation which goes on to the end. rows: of the evaluation, in the order in which
    they ended."""

    def __init__(
        self, lines: IO[str], taskset: "Taskset", planned: PlannedEvaluation, kept: "KeptEpisodes | None"
    ) -> None:
        self.rows: list[EpisodeRow] = []
        self.played: list[ExternalEpisode] = []
        self._lines, self._planned = lines, planned
        self._digests = {task.slug: task.digest for task in taskset.tasks}
        self._secrets = TaskSecrets({task.slug: task.args for task in taskset.tasks})
        self._counts = EvalCounts()
        self._marks: dict[tuple[str, int], str] = {}
        self._show: ShowEval = lambda progress: None
        self._kept: Sequence[Mapping[str, Any]] = () if kept is None else kept.rows
        for row, run in zip(self._kept, () if kept is None else kept.runs, strict=True):
            self.rows.append(episode_row_of(row, run.episode_id))
            self._count(run)

    @property
    def lines_by_episode(self) -> dict[str, Mapping[str, Any]]:
        """What was written of each."""
        before = {str(row["episode_id"]): row for row in self._kept}
        return {**before, **{one.run.episode_id: one.row for one in self.played}}

    def begin(self, show: ShowEval) -> None:
        """Say from now on how far it is."""
        self._show = show
        show(self._progress())

    def __call__(self, played: "ExternalEpisode") -> None:
        from upcycle.images import row_with_files
        from upcycle.reporting.external_rows import episode_row

        if not self.rows:
            self._lines.truncate(0)
        slug = played.run.task_slug
        self.played.append(played)
        self.rows.append(episode_row(played, self._digests[slug], self._secrets))
        row = row_with_files(played.row, Path(self._lines.name).parent)
        self._lines.write(json.dumps({**row, PLANNED: self._planned.to_json()}, ensure_ascii=False) + "\n")
        self._lines.flush()
        self._count(played.run)
        self._show(self._progress())

    def _count(self, run: "Run") -> None:
        self._counts.add(run)
        attempt = next(n for n in range(len(self.rows)) if (run.task_slug, n) not in self._marks)
        self._marks[run.task_slug, attempt] = mark_of(run)

    def _progress(self) -> EvalProgress:
        attempts = marks_of(list(self._digests), self._planned.group, self._marks)
        return self._counts.progress(self._planned.num_episodes, attempts)
