"""The planner's hot statements, built once: constructing a statement costs ten times its execution."""

from typing import Any

import sqlalchemy as sa

from episodes import EpisodeFailure, GroupOutcome
from event_bus.topology import DECISIONS
from identities.subjects import token
from scenario_runner.adapters.tables import CLAIM, EPISODE, GROUP, RUN, RUN_COUNT, TASK
from scenario_runner.domain.runs import UNSETTLED, EpisodeRow, EpisodeState, GroupRow, RunRecord
from sql_store import UtcDateTime, owned
from sql_store.outbox import OUTBOX


def _all_but(row: Any, fixed: str) -> tuple[str, ...]:
    """The columns that change after a row was added."""
    return tuple(name for name in row.__slots__ if name not in fixed.split())


def _write(table: sa.Table, key: str, names: tuple[str, ...]) -> sa.Update:
    """Changes these columns of the row whose key is the parameter `<key>_`."""
    changed: dict[str, Any] = {name: sa.bindparam(name) for name in names}
    return sa.update(table).where(table.c[key] == sa.bindparam(f"{key}_")).values(changed)


RUN_BY_ID = sa.select(RUN).where(RUN.c.run_id == sa.bindparam("run_id_"))
RUN_BY_REQUEST = sa.select(RUN).where(owned(RUN, request_id=sa.bindparam("request_id_")))
ACTIVE_RUNS = (
    # This very text: SQLite takes a partial index only for the condition it was made with.
    sa.select(RUN)
    .where(sa.text("run.state NOT IN ('completed', 'failed', 'cancelled')"))
    .order_by(RUN.c.submitted_at)
)

RUN_PROGRESS = _all_but(
    RunRecord, "run_id request_id spec split submitted_at source_digest trace_id trace tenant"
)
KEEP_COUNTS = (
    sa.update(RUN).where(RUN.c.run_id == sa.bindparam("run_id_")).values(final_counts=sa.bindparam("counts"))
)
WRITE_RUN = _write(RUN, "run_id", RUN_PROGRESS)

_GROUP_COLUMNS = [GROUP.c[name] for name in GroupRow.__slots__]
GROUPS_BY_ID = sa.select(*_GROUP_COLUMNS).where(
    GROUP.c.group_id.in_(sa.bindparam("group_ids", expanding=True))
)
_GROUP_OF_RUN = GROUP.c.run_id == sa.bindparam("run_id_")
OPEN_GROUPS = sa.select(sa.func.count()).select_from(GROUP).where(_GROUP_OF_RUN, GROUP.c.is_open)
RUN_COUNTS = sa.select(RUN_COUNT.c.kind, RUN_COUNT.c.value, RUN_COUNT.c.num).where(
    RUN_COUNT.c.run_id == sa.bindparam("run_id_"), RUN_COUNT.c.num > 0
)
_IS_UNSETTLED = EPISODE.c.state.in_([state.value for state in UNSETTLED])
_HAS_UNSETTLED = sa.exists().where(EPISODE.c.group_id == GROUP.c.group_id, _IS_UNSETTLED)
LEFT_OPEN = (
    sa.select(GROUP.c.group_id)
    .where(_GROUP_OF_RUN, GROUP.c.is_open, sa.not_(_HAS_UNSETTLED))
    .order_by(GROUP.c.group_id)
)
_SINCE_STEP = (_GROUP_OF_RUN, GROUP.c.at_step == sa.bindparam("since_step"))
_WITHOUT_STEP = (
    *_SINCE_STEP,
    GROUP.c.outcome.like("excluded(%"),  # an open group has no outcome
    GROUP.c.settled_at >= sa.bindparam("after", type_=UtcDateTime()),
)
TRAINED_SINCE = (
    sa.select(sa.func.count())
    .select_from(GROUP)
    .where(_GROUP_OF_RUN, GROUP.c.at_step >= sa.bindparam("since_step"))
    .where(GROUP.c.outcome == GroupOutcome.TRAINED)
)
GROUPS_WITHOUT_STEP = (
    sa.select(GROUP.c.outcome, sa.func.count()).where(*_WITHOUT_STEP).group_by(GROUP.c.outcome)
)
REWARDS_WITHOUT_STEP = (
    sa.select(GROUP.c.outcome, EPISODE.c.reward, sa.func.count())
    .join_from(GROUP, EPISODE, EPISODE.c.group_id == GROUP.c.group_id)
    .where(*_WITHOUT_STEP, EPISODE.c.graded_at.is_not(None))
    .group_by(GROUP.c.outcome, EPISODE.c.reward)
)


def _newest_closed(column: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Of the groups of a run that ended last, newest first."""
    closed = sa.select(column).where(_GROUP_OF_RUN, GROUP.c.is_open == sa.false())
    newest = closed.order_by(GROUP.c.settled_at.desc(), GROUP.c.position.desc())
    return newest.limit(sa.bindparam("limit_"))


RECENT_OUTCOMES = _newest_closed(GROUP.c.num_graded)
GROUP_PROGRESS = ("expected_members", "num_graded", "is_open", "outcome", "settled_at", "at_step")
WRITE_GROUP = _write(GROUP, "group_id", GROUP_PROGRESS)

_EPISODES = sa.select(*(EPISODE.c[name].label(name) for name in EpisodeRow.__slots__)).order_by(
    EPISODE.c.episode_id
)
_OF_RUN = EPISODE.c.run_id == sa.bindparam("run_id_")
_PLANNED = EPISODE.c.state == EpisodeState.PLANNED.value
EPISODES_OF_GROUPS = _EPISODES.where(EPISODE.c.group_id.in_(sa.bindparam("group_ids", expanding=True)))
EPISODES_OF_RUN = _EPISODES.where(_OF_RUN)
EPISODES_OF_NEWEST_GROUPS = _EPISODES.where(EPISODE.c.group_id.in_(_newest_closed(GROUP.c.group_id)))
IN_FLIGHT = sa.select(sa.func.count()).select_from(EPISODE).where(_OF_RUN, _IS_UNSETTLED)
UNSETTLED_OF_RUN = _EPISODES.where(_OF_RUN, _IS_UNSETTLED)
OVERDUE = _EPISODES.where(_OF_RUN, _PLANNED, EPISODE.c.opened_at < sa.bindparam("before"))
NEVER_OPENED = _EPISODES.where(
    _OF_RUN, _PLANNED, EPISODE.c.opened_at.is_(None), EPISODE.c.dispatched_at < sa.bindparam("before")
)
_STAGE = sa.case(
    (EPISODE.c.state == EpisodeState.GRADED.value, "graded"),
    (EPISODE.c.opened_at.is_not(None), "opened"),
    else_="queued",
)
_SINCE = sa.func.coalesce(EPISODE.c.graded_at, EPISODE.c.opened_at, EPISODE.c.requested_at)
STAGES = (
    sa.select(_STAGE, sa.func.count(), sa.func.min(_SINCE, type_=UtcDateTime()))
    .where(_OF_RUN, _IS_UNSETTLED)
    .group_by(_STAGE)
)
# Groups of which every unsettled member is graded, and since when.
_COMPLETE_SINCE = sa.func.max(EPISODE.c.graded_at, type_=UtcDateTime())
COMPLETE_GROUPS = (
    sa.select(EPISODE.c.group_id, _COMPLETE_SINCE)
    .where(_OF_RUN, _IS_UNSETTLED)
    .group_by(EPISODE.c.group_id)
    .having(sa.func.max(sa.case((_PLANNED, 1), else_=0)) == 0)
    .order_by(EPISODE.c.group_id)
)
# This very text: SQLite takes a partial index only for the condition it was made with.
_FAILED = (_OF_RUN, sa.text("episode.state = 'failed'"))
FAILURES = sa.select(EPISODE.c.reason, sa.func.count()).where(*_FAILED).group_by(EPISODE.c.reason)
LAST_FAILURE = sa.select(EPISODE.c.detail).where(*_FAILED).order_by(EPISODE.c.settled_at.desc()).limit(1)
LOSSES = (
    sa.select(
        sa.func.coalesce(EPISODE.c.opened_at, EPISODE.c.dispatched_at, EPISODE.c.requested_at),
        EPISODE.c.settled_at,
        EPISODE.c.opened_at.is_not(None),
    )
    .where(*_FAILED, EPISODE.c.reason == EpisodeFailure.ENVIRONMENT_LOST.value)
    .order_by(EPISODE.c.settled_at.desc())
    .limit(2048)
)

# `opened_at` has a statement of its own.
EPISODE_PROGRESS = _all_but(
    EpisodeRow,
    "episode_id run_id group_id member attempt task_position new_task taskset split opened_at guided_after",
)
WRITE_EPISODE = _write(EPISODE, "episode_id", EPISODE_PROGRESS)
NOTE_OPENED = (
    sa.update(EPISODE)
    .where(EPISODE.c.episode_id == sa.bindparam("episode_id_"), EPISODE.c.opened_at.is_(None))
    .values(opened_at=sa.bindparam("moment"))
)

TASKS_AT = (
    sa.select(TASK)
    .where(
        owned(TASK, taskset=sa.bindparam("taskset_")),
        TASK.c.position.in_(sa.bindparam("positions", expanding=True)),
    )
    .order_by(TASK.c.position)
)
ALL_TASKS = sa.select(TASK).where(owned(TASK, taskset=sa.bindparam("taskset_"))).order_by(TASK.c.position)

SPLITS_OF = sa.select(CLAIM.c.digest, CLAIM.c.split).where(
    owned(CLAIM), CLAIM.c.digest.in_(sa.bindparam("digests", expanding=True))
)
CLAIMS_AGAINST = (
    sa.select(CLAIM.c.digest, CLAIM.c.split, CLAIM.c.claimed_by)
    .where(
        owned(CLAIM),
        CLAIM.c.digest.in_(sa.bindparam("digests", expanding=True)),
        CLAIM.c.split != sa.bindparam("split_"),
    )
    .order_by(CLAIM.c.digest)
)


def outbox_waiting(model: str) -> sa.Select[Any]:
    """How many announcements about a model are not published yet."""
    unpublished = OUTBOX.c.published_at.is_(None), OUTBOX.c.refusal.is_(None)
    subject, name = OUTBOX.c.subject, f".{token(model)}"
    decides = sa.and_(OUTBOX.c.stream == DECISIONS, subject.contains(f"{name}.", autoescape=True))
    of_model = sa.or_(subject.endswith(name, autoescape=True), decides)
    return sa.select(sa.func.count()).select_from(OUTBOX).where(*unpublished, of_model)


def newest_runs(limit: int, model: str, *, asked_for: bool) -> sa.Select[Any]:
    """Of any model where it is "". asked_for: none that the platform ordered."""
    wanted = sa.select(RUN).where(owned(RUN, **({"model": model} if model else {})))
    if asked_for:
        wanted = wanted.where(RUN.c.is_by_platform == sa.false())
    return wanted.order_by(RUN.c.submitted_at.desc(), RUN.c.run_id.desc()).limit(limit)
