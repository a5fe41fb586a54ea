"""WatchRewards: shows every ended episode to the monitors of its run, and keeps their alarms and quarantines.
Guided episodes are left out: a policy that is told what to do needs no evidence for its answer.

Here and not in the grader, whose replicas see a share of a run each: the store has all episodes of a run, in
one order, with the failed ones, and reads each body anyway.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from reward_monitors import RunMonitors, Seen
from service_kit.loops import until_stopped
from trajectory_store import telemetry
from trajectory_store.adapters.sql_monitors import FreshEpisodes, RunWatch, SqlMonitors
from trajectory_store.domain.errors import BodyCorrupt, BodyRemoved, UnknownTrajectory
from trajectory_store.domain.facts import is_guided
from trajectory_store.domain.hacks import KeptAlarm, SeenEpisode, followed
from trajectory_store.domain.ledger import Episode
from trajectory_store.usecases.reading import ReadBody
from trajectory_store.wire.observed import observed
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

log = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


class WatchRewards:
    """A loop over the feed of changes; any number of replicas may run it."""

    def __init__(
        self,
        monitors: SqlMonitors,
        read: ReadBody,
        *,
        now: Callable[[], datetime],
        idle_s: float,
        batch_size: int,
        quarantines: bool,
    ) -> None:
        """idle_s: pause when there was nothing new. quarantines: set aside what a monitor is sure of."""
        self._monitors = monitors
        self._read = read
        self._now = now
        self._idle_s = idle_s
        self._batch_size = batch_size
        self._quarantines = quarantines
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Rows changed: look now."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""

        async def look() -> None:
            while await self.look_once() and not stop.is_set():
                pass

        await until_stopped(stop, look, every_s=self._idle_s, wake=self._wake, waiting="reward_monitors_wait")

    async def look_once(self) -> bool:
        """Show one batch to the monitors. Returns whether there may be more. Raises Unavailable."""
        fresh = await self._monitors.fresh(self._batch_size)
        if fresh.until == fresh.after:
            return False
        seen: list[SeenEpisode] = []
        runs: dict[str, tuple[RunMonitors, dict[str, KeptAlarm], str]] = {}
        for episode in (one for one in fresh.episodes if not is_guided(one.identity)):
            run_id = episode.identity.run_id
            if run_id not in runs:
                runs[run_id] = (*await self._monitors.monitors(run_id), episode.identity.model)
            body = await self._body(episode)
            # In a thread: an episode may hold megabytes of text, in which secrets are looked for.
            said = await asyncio.to_thread(_said_of, runs[run_id][0], episode, body)
            seen.append(SeenEpisode(episode, said))
        await self._keep(fresh, seen, runs)
        return True

    async def _keep(
        self,
        fresh: FreshEpisodes,
        seen: list[SeenEpisode],
        runs: dict[str, tuple[RunMonitors, dict[str, KeptAlarm], str]],
    ) -> None:
        now_us = (self._now() - _EPOCH) // _US
        watches = [
            RunWatch(run_id, monitors, followed(known, monitors.alarms(), run_id, model, now_us))
            for run_id, (monitors, known, model) in runs.items()
        ]
        if not self._quarantines:
            seen = [SeenEpisode(one.episode, one.seen.without_quarantine()) for one in seen]
        if not await self._monitors.keep(fresh, seen, watches, now_us):
            return  # another replica was first
        telemetry.MONITORED.inc(len(seen))
        for watch in watches:
            for kept in watch.alarms:
                self._report(kept, is_new=kept.raised_us == now_us)

    def _report(self, kept: KeptAlarm, *, is_new: bool) -> None:
        kind = kept.alarm.kind.value
        telemetry.REWARD_ALARM.labels(kept.model, kind).set(kept.is_open)
        extra = {"run_id": kept.run_id, "alarm": kind, "why": kept.alarm.text}
        if kept.cleared_us is not None:
            log.info("reward_alarm_cleared", extra=extra)
        elif is_new:
            log.warning("reward_alarm_raised", extra=extra)

    async def _body(self, episode: Episode) -> TrajectoryBody | None:
        """None where it cannot be read: then the row alone is looked at."""
        if episode.record is None:
            return None
        try:
            return await self._read(episode)
        except (BodyCorrupt, BodyRemoved, UnknownTrajectory):
            return None


def _said_of(monitors: RunMonitors, episode: Episode, body: TrajectoryBody | None) -> Seen:
    """What the monitors say of it. One that breaks a monitor is logged and counted, and shows nothing: the
    monitors of all runs would stand still before it."""
    try:
        return monitors.see(observed(episode, body))
    except Exception:
        log.exception("episode_not_watched", extra={"episode_id": episode.identity.episode_id})
        telemetry.NOT_MONITORED.inc()
        return Seen((), "", "")
