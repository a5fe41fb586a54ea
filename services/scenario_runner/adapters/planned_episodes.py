"""What each planned episode plays, read from the tables of the plan."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from blob_store import BlobRef
from scenario_runner.adapters.sql_plan import PLANNING, PlanUnit
from scenario_runner.adapters.tables import EPISODE, NEW_TASK, RUN, RUN_MIX, TASK, TASKSET
from scenario_runner.domain.environments import EnvironmentSource, EpisodeNotOpen, EpisodeToPlay
from scenario_runner.domain.runs import EpisodeState
from scenario_runner.wire import runs as wire
from sql_store import Database, owned, take_turn
from upcycle.run_config import RunSpec

_FAILED = EPISODE.alias("failed")
_MIXED_DIGEST = (  # by name: of an older revision, too
    sa.select(RUN_MIX.c.source_digest)
    .where(RUN_MIX.c.run_id == EPISODE.c.run_id, RUN_MIX.c.name == TASKSET.c.name)
    .correlate(EPISODE, TASKSET)
    .scalar_subquery()
)
_WANTED = (
    sa.select(
        EPISODE.c.state,
        EPISODE.c.guided_after,
        sa.func.coalesce(NEW_TASK.c.scenario, TASK.c.scenario).label("scenario"),
        sa.func.coalesce(NEW_TASK.c.args_json, TASK.c.args_json).label("args_json"),
        TASKSET.c.source,
        RUN.c.spec,
        sa.func.coalesce(_MIXED_DIGEST, RUN.c.source_digest).label("source_digest"),
        *(_FAILED.c[name] for name in ("body_key", "body_sha256", "body_size")),
    )
    .join_from(EPISODE, RUN, EPISODE.c.run_id == RUN.c.run_id)
    .join(TASK, owned(TASK, taskset=EPISODE.c.taskset, position=EPISODE.c.task_position))
    .join(TASKSET, owned(TASKSET, storage_key=EPISODE.c.taskset))
    .outerjoin(NEW_TASK, (NEW_TASK.c.run_id == EPISODE.c.run_id) & (NEW_TASK.c.number == EPISODE.c.new_task))
    .outerjoin(_FAILED, _FAILED.c.episode_id == EPISODE.c.guided_after)
    .where(EPISODE.c.episode_id == sa.bindparam("episode_id"))
)


class SqlPlannedEpisodes:
    """Implements ports.PlannedEpisodes over the tables of the plan."""

    def __init__(self, database: Database, *, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        # Keyed by the text of both columns, so that each text is parsed once and not per episode.
        self._parsed: dict[tuple[str, str], tuple[EnvironmentSource, RunSpec]] = {}

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        """Raises EpisodeNotOpen for one that is unknown or settled."""
        row = await self._database.run(lambda sql: sql.execute(_WANTED, {"episode_id": episode_id}).first())
        if row is None:
            raise EpisodeNotOpen(f"episode {episode_id!r} was never planned")
        if row.state != EpisodeState.PLANNED.value:
            raise EpisodeNotOpen(f"episode {episode_id!r} is {row.state}: no run waits for it")
        source, spec = self._parse(row.source, row.spec)
        deadline = self._now() + timedelta(seconds=spec.episode_deadline_s)
        return EpisodeToPlay(
            episode_id,
            source,
            row.scenario,
            row.args_json,
            deadline,
            spec.failures_are_missing,
            row.source_digest,
            BlobRef(row.body_key, row.body_sha256, row.body_size) if row.guided_after else None,
        )

    async def opened(self, episode_ids: Sequence[str]) -> None:
        """Note that the environments of these episodes were started."""

        def note(sql: sa.Connection) -> None:
            take_turn(sql, PLANNING)
            PlanUnit(sql, self._now()).note_opened(episode_ids)

        await self._database.run(note)

    def _parse(self, source: str, spec: str) -> tuple[EnvironmentSource, RunSpec]:
        parsed = self._parsed.get((source, spec))
        if parsed is None:
            parsed = wire.source_from_json(source), wire.spec_from_json(spec)
            if len(self._parsed) >= 1000:
                self._parsed.clear()
            self._parsed[source, spec] = parsed
        return parsed
