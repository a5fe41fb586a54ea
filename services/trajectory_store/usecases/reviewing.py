"""Reviews and alarms: what people read of the monitors, and what they say."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from identities.entities import episode_of
from service_kit.errors import InvalidRequest
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_monitors import SqlMonitors
from trajectory_store.domain.errors import UnknownAlarm, UnknownTrajectory
from trajectory_store.domain.hacks import KeptAlarm, Review, SignatureBatch, Verdict
from trajectory_store.domain.ledger import Episode
from upcycle.wording import amount

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_MAX_RUNS: Final = 100
_MAX_NAME_CHARS: Final = 128
_MAX_NOTE_CHARS: Final = 2000
_MAX_TOP: Final = 1000


class ReviewRewards:
    """Alarms read and dismissed; verdicts kept. Raises Unavailable."""

    def __init__(
        self,
        index: SqlIndex,
        monitors: SqlMonitors,
        *,
        behind: Callable[[datetime], Awaitable[str | None]] | None,
        on_change: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        """behind: which facts of before a moment the index has not read; None: no monitor runs here."""
        self._behind = behind
        self._index = index
        self._monitors = monitors
        self._on_change = on_change
        self._now = now

    async def alarms(self, run_ids: Sequence[str], *, only_open: bool) -> list[KeptAlarm]:
        """Of these runs, or of all; newest first. Raises InvalidRequest."""
        if len(run_ids) > _MAX_RUNS:
            raise InvalidRequest(f"{len(run_ids)} run_ids, at most {_MAX_RUNS} at once")
        return await self._monitors.alarms(run_ids, only_open=only_open)

    async def unseen(self, run_ids: Sequence[str], until: datetime) -> str:
        """Why alarms of these runs about what was said before a moment may still come; "": none will. To be
        asked before the alarms. Raises Unavailable."""
        if self._behind is None:
            return ""
        if (why := await self._behind(until)) is not None:
            return why
        num = await self._monitors.num_unseen(run_ids, (until - _EPOCH) // _US)
        return f"its monitors have not seen {amount(num, 'episode')} yet" if num else ""

    async def dismiss(self, run_id: str, kind: str, by: str, note: str) -> KeptAlarm:
        """A person says that it is none. Raises UnknownAlarm, InvalidRequest."""
        _check_words(by, note)
        found = await self._monitors.dismiss(run_id, kind, by, note, self._now_us())
        if found is None:
            raise UnknownAlarm(f"run {run_id!r} has no alarm {kind!r}; ListAlarms names those that it has")
        return found

    async def review(
        self, trajectory_or_episode_id: str, verdict: Verdict, reviewer: str, note: str
    ) -> tuple[Review, list[Episode]]:
        """Keep a verdict; `hacked` quarantines the trajectory and those of its run with its signature, those
        that come later when they are seen. Raises UnknownTrajectory, InvalidRequest."""
        _check_words(reviewer, note)
        episode_id = episode_of(trajectory_or_episode_id)
        episode = await self._index.find_episode(episode_id)
        if episode is None or episode.record is None:
            raise UnknownTrajectory.named(trajectory_or_episode_id)
        review = Review(episode_id, episode.identity.run_id, verdict, reviewer, note, self._now_us())
        quarantined = await self._monitors.review(review)
        if quarantined:
            self._on_change()
        return review, quarantined

    async def reviews(self, run_id: str) -> list[Review]:
        """Of a run, newest first."""
        return await self._monitors.reviews(run_id)

    async def signatures(self, run_id: str) -> list[SignatureBatch]:
        """Of a run, what pays most first."""
        return await self._monitors.signatures(run_id)

    async def num_confirmed(self, run_id: str, top: int) -> int:
        """Of the run's `top` highest-rewarded trajectories, and of those that earned as much as the last of
        them. Raises InvalidRequest."""
        if not 0 < top <= _MAX_TOP:
            raise InvalidRequest(f"top is {top}, expected 1..{_MAX_TOP}")
        return await self._monitors.num_confirmed(run_id, top)

    def _now_us(self) -> int:
        return (self._now() - _EPOCH) // _US


def _check_words(name: str, note: str) -> None:
    if not name or len(name) > _MAX_NAME_CHARS:
        raise InvalidRequest(f"who says so has {len(name)} characters, expected 1..{_MAX_NAME_CHARS}")
    if len(note) > _MAX_NOTE_CHARS:
        raise InvalidRequest(f"note has {len(note)} characters, at most {_MAX_NOTE_CHARS}")
