"""Facts that the trajectory store folds into its ledger per second, and how fast the ledger answers."""

import time
from datetime import UTC, datetime

from benchmarks.figures import Figure, Limit
from benchmarks.options import Options
from blob_store import BlobRef
from episodes import EpisodeIdentity, Purpose, Split
from identities import entities, objects
from sql_store import MigratedDatabase
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.facts import (
    EpisodeFact,
    TrajectoryGrade,
    TrajectoryRecord,
    graded,
    recorded,
    requested,
    trained,
)

_RUN = "run-ledger"
_BATCH = 200


async def measure(options: Options) -> list[Figure]:
    """Four facts per episode in batches of 200, as the service folds them, into a SQLite file."""
    db = MigratedDatabase(f"sqlite:///{options.scratch}/ledger.sqlite", "trajectory_store")
    await db.start()
    try:
        index = SqlIndex(db)
        facts = [fact for number in range(options.sized(5000, 250)) for fact in _facts(number)]
        began = time.perf_counter()
        for start in range(0, len(facts), _BATCH):
            await index.project(facts[start : start + _BATCH])
        rate = len(facts) / (time.perf_counter() - began)
        answers_ms = []
        for _ in range(20):
            began = time.perf_counter()
            await index.ledger(_RUN, 0)
            answers_ms.append((time.perf_counter() - began) * 1e3)
    finally:
        await db.stop()
    note = f"{len(facts):,} facts in batches of {_BATCH}"
    return [
        Figure(
            "facts folded into the ledger", "per s", (rate,), limit=Limit(1000, "", at_most=False), note=note
        ),
        Figure("GetLedger of one run", "ms", tuple(answers_ms), limit=Limit(100, "", at_most=True)),
    ]


def _facts(number: int) -> list[EpisodeFact]:
    group_id = entities.group_id(_RUN, number // 4)
    identity = EpisodeIdentity(
        episode_id=entities.episode_id(group_id, number % 4, 0),
        run_id=_RUN,
        group_id=group_id,
        member=number % 4,
        group_size=4,
        model="incident",
        purpose=Purpose.TRAIN,
        split=Split.TRAIN,
        task_slug=f"task-{number % 100}",
        task_digest="d" * 64,
        family="db",
    )
    at_us = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6) + number
    body = BlobRef(objects.trajectory_body(_RUN, identity.episode_id), "00" * 32, 10_000)
    record = TrajectoryRecord(
        body, oldest_version=3, newest_version=4, stop_reason=1, num_turns=3, num_sampled_tokens=150,
        recorded_us=at_us,
    )  # fmt: skip
    return [
        requested(identity, at_us),
        recorded(identity, record),
        graded(identity, record, TrajectoryGrade(0.5, False, b"", at_us)),
        trained(identity, at_us, step=1, by_run=_RUN),
    ]
