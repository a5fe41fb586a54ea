"""Monitors and an episode that breaks them, what a person says meanwhile, and texts of size."""

import math
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import body_of
from tests.services.trajectory_store.test_sql_index import facts

from reward_monitors import MonitorKind, Observed
from sql_store import Database
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_monitors import SqlMonitors
from trajectory_store.domain.ledger import Episode
from trajectory_store.usecases import watching_hacks
from trajectory_store.usecases.watching_hacks import WatchRewards
from trajectory_store.wire.observed import observed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

NOW = datetime(2026, 11, 26, tzinfo=UTC)
LEAKS = '{"watch":{"secrets":["the cause is oom"]}}'


class Watcher:
    """Monitors over a real database. body: changes what is read of an episode."""

    def __init__(self, db: Database) -> None:
        self.index, self.monitors = SqlIndex(db), SqlMonitors(db)
        self.body: Callable[[trajectory_pb2.TrajectoryBody], None] = lambda body: None
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        read: Any = self._read
        self.watch = WatchRewards(
            self.monitors, read, now=lambda: NOW, idle_s=1.0, batch_size=100, quarantines=False
        )

    async def _read(self, episode: Episode) -> trajectory_pb2.TrajectoryBody:
        if self.meanwhile is not None:
            await self.meanwhile()
            self.meanwhile = None
        body = body_of(0)
        self.body(body)
        return body

    async def play(self, *graded: TrajectoryGraded) -> None:
        await self.index.project(facts(*graded))
        while await self.watch.look_once():
            pass

    async def open(self, run: str = "run-1") -> list[MonitorKind]:
        return [one.alarm.kind for one in await self.monitors.alarms([run], only_open=True)]


def leak(body: trajectory_pb2.TrajectoryBody) -> None:
    body.first_state.value_json = LEAKS
    body.turns[0].tool_results[0].content = "the cause is OOM"


@pytest.fixture
def watcher(db: Database) -> Watcher:
    return Watcher(db)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e200])
async def test_an_episode_that_no_monitor_can_count_stops_none(
    watcher: Watcher, reward: float, caplog: pytest.LogCaptureFixture
) -> None:
    watcher.body = leak
    await watcher.play(events.graded(0, reward=reward))
    await watcher.play(*(events.graded(number, reward=1.0) for number in range(1, 4)))
    assert MonitorKind.LEAK in await watcher.open()
    broken = [one for one in caplog.records if one.message == "episode_not_watched"]
    assert [one.__dict__["episode_id"] for one in broken][:1] in ([], [events.episode_id(0)])
    assert len(broken) == 1 or math.isnan(reward)  # SQLite keeps no NaN: that episode has no grade


async def test_an_alarm_that_a_person_dismisses_while_episodes_are_read_stays_dismissed(
    watcher: Watcher,
) -> None:
    watcher.body = leak
    await watcher.play(*(events.graded(number, reward=1.0) for number in range(3)))
    assert await watcher.open() == [MonitorKind.LEAK]

    async def dismiss() -> None:
        await watcher.monitors.dismiss("run-1", MonitorKind.LEAK.value, "ada", "the tool may say so", 1)

    watcher.meanwhile = dismiss
    await watcher.play(events.graded(3, reward=1.0))
    assert watcher.meanwhile is None
    (kept,) = await watcher.monitors.alarms(["run-1"], only_open=False)
    assert (kept.dismissed_by, kept.note) == ("ada", "the tool may say so")
    assert await watcher.open() == []


async def test_an_episode_is_read_beside_the_event_loop(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MB of results and 32 secrets kept every other request of the store waiting for half a minute."""
    readers: list[threading.Thread] = []

    def noted(episode: Episode, body: trajectory_pb2.TrajectoryBody | None) -> Observed:
        readers.append(threading.current_thread())
        return observed(episode, body)

    monkeypatch.setattr(watching_hacks, "observed", noted)
    await watcher.play(events.graded(0))
    assert [one is threading.main_thread() for one in readers] == [False]
