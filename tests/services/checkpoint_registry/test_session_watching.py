"""Graded sessions of a canary release: what counts, and who loses its place by them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.test_canary_releases import begin, with_engine

from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.domain.models import CanaryRelease
from checkpoint_registry.domain.session_watch import GradedSession, SessionWatch, began, play_of
from checkpoint_registry.usecases.canary_releases import CanaryReleases, ReleaseOrder
from checkpoint_registry.usecases.session_watching import SessionPolicy, WatchSessions
from identities.entities import checkpoint_id

NEWER, OLDER = 2, 1


def session(
    version: int, at_s: float, *, success: bool, opened_s: float | None = None, number: int = 0
) -> GradedSession:
    opened = START + timedelta(seconds=at_s - 1 if opened_s is None else opened_s)
    graded = START + timedelta(seconds=at_s)
    return GradedSession(f"traj-session-{at_s}-{number}", version, opened, graded, play_of(success, ""))


def folded(*outcomes: tuple[int, bool]) -> SessionWatch:
    """outcomes: (version, success), in the order of the rewards."""
    sessions = [session(version, at, success=won) for at, (version, won) in enumerate(outcomes)]
    at_once = SessionWatch(NEWER, OLDER).after(sessions)
    one_by_one = SessionWatch(NEWER, OLDER)
    for one in sessions:
        one_by_one = one_by_one.after([one])
    assert at_once == one_by_one
    return at_once


def test_sessions_are_taken_two_by_two_and_a_pair_has_one_of_each_version() -> None:
    found = folded(
        (NEWER, False), (OLDER, True),  # a pair: worse
        (NEWER, False), (NEWER, True),  # no pair
        (OLDER, False), (7, True), (NEWER, True),  # a pair: better; 7 is of another version
        (OLDER, True), (NEWER, True),  # a pair: alike
        (OLDER, True),  # waits for the next
    )  # fmt: skip
    bet = found.watch.bets["success"]
    assert (found.watch.pairs, bet.worse, bet.better) == (3, 1, 1)
    assert found.waiting is not None
    assert not found.watch.is_lost


def test_a_release_counts_from_when_it_began_to_divide_between_the_same_versions() -> None:
    def change(at_s: float, version: int, share: float) -> CanaryRelease:
        return CanaryRelease(MODEL, 1, "c", version, share, "ann", "", START + timedelta(seconds=at_s))

    grown = [change(0, 1, 0.1), change(5, 1, 0.5)]
    assert began(grown) == START
    assert began([*grown, change(9, 2, 0.5)]) == START + timedelta(seconds=9)
    assert began([*grown, change(9, 1, 0.0)]) is None
    assert began([*grown, change(9, 1, 0.0), change(11, 1, 0.2)]) == START + timedelta(seconds=11)
    assert began([]) is None


def history(seed: int, number: int, *, share: float, gap: float, drift: float) -> Iterator[tuple[int, bool]]:
    """Sessions as the gateway divides them; the newer version succeeds less often by `gap`. How often both
    do falls by `drift` over the history, as when the users of the night ask harder things."""
    draw = random.Random(seed)
    for at in range(number):
        version = OLDER if draw.random() < share else NEWER
        rate = 0.5 + drift / 2 - drift * at / number - gap * (version == NEWER)
        yield version, draw.random() < rate


def lost(seed: int, number: int, *, share: float, gap: float = 0.0, drift: float = 0.0) -> bool:
    outcomes = history(seed, number, share=share, gap=gap, drift=drift)
    sessions = (session(version, at, success=won) for at, (version, won) in enumerate(outcomes))
    return SessionWatch(NEWER, OLDER).after(sessions).watch.is_lost


@pytest.mark.parametrize(("share", "drift"), [(0.5, 0.0), (0.1, 0.9), (0.9, 0.9)])
def test_an_equal_version_loses_its_place_seldom_whatever_changes_meanwhile(
    share: float, drift: float
) -> None:
    assert sum(lost(seed, 800, share=share, drift=drift) for seed in range(200)) <= 2  # 0.2


def test_a_version_that_is_worse_by_twenty_points_is_found() -> None:
    found = sum(lost(seed, 2000, share=0.5, gap=0.2) for seed in range(20))
    assert found >= 18


class SessionsDouble:
    """What the trajectory store would list."""

    def __init__(self) -> None:
        self.graded: list[GradedSession] = []
        self.asked: list[datetime] = []

    async def since(self, model: str, graded_since: datetime) -> Sequence[GradedSession]:
        assert model == MODEL
        self.asked.append(graded_since)
        found = [one for one in self.graded if one.graded_at >= graded_since]
        return sorted(found, key=lambda one: one.graded_at)

    def add(
        self, number: int, clock_s: float, *, newer: int, older: int, opened_s: float | None = None
    ) -> None:
        """Pairs in which the newer version did worse."""
        for at in range(number):
            for version, success in ((newer, False), (older, True)):
                moment = clock_s + len(self.graded)
                one = session(version, moment, success=success, opened_s=opened_s, number=at)
                self.graded.append(one)


@pytest.fixture
def sessions() -> SessionsDouble:
    return SessionsDouble()


@pytest.fixture
def releases(harness: RegistryHarness) -> CanaryReleases:
    return CanaryReleases(SqlCanaryReleases(harness.database), now=harness.clock)


def watcher(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble, **policy: Any
) -> WatchSessions:
    settings = replace(SessionPolicy(), **policy)
    return WatchSessions(releases, harness.models, sessions, settings, now=harness.clock)


async def head_at(harness: RegistryHarness, version: int) -> None:
    """A model with versions 0, 1 and 2, and an engine. A person moves head there, step by step."""
    await with_engine(harness)
    for one in (1, 2):
        await harness.save(one)
    for one in range(1, version + 1):
        harness.clock.forward(1)
        target = await harness.models.version(MODEL, one)
        await harness.models.move_head(
            target, expected_revision=None, actor="ann", reason="try it", at=harness.clock()
        )
    harness.clock.forward(1)


def seconds(harness: RegistryHarness) -> float:
    return (harness.clock.at - START).total_seconds()


async def under_way(harness: RegistryHarness) -> CanaryRelease | None:
    return (await harness.models.model(MODEL)).canary_release


async def test_head_goes_back_to_the_predecessor_that_does_better_beside_it(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    await begin(releases, 1, 0.5)
    watch = watcher(harness, releases, sessions)
    sessions.add(30, seconds(harness), newer=2, older=1, opened_s=-5)  # they began before the release
    await watch.look()
    sessions.add(10, seconds(harness) + 100, newer=2, older=1)
    await watch.look()
    assert await harness.head() == 2  # ten pairs are too few
    sessions.add(20, seconds(harness) + 200, newer=2, older=1)
    await watch.look()
    assert await harness.head() == 1
    move = (await harness.models.head_moves(MODEL))[-1]
    assert move.actor == "gate"
    assert move.reason.startswith("rolled back: over 30 pairs of graded sessions v2 did worse than v1 beside")
    assert "worse in 30, better in 0" in move.reason
    assert await under_way(harness) is None
    await watch.look()
    assert await harness.head() == 1


async def test_what_was_read_is_read_again_after_a_restart_and_counts_once(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    await begin(releases, 1, 0.5)
    sessions.add(9, seconds(harness) + 10, newer=2, older=1)
    watch = watcher(harness, releases, sessions)
    for _ in range(5):
        await watch.look()  # lists what it knows each time
    assert await harness.head() == 2
    again = watcher(harness, releases, sessions)
    sessions.add(3, seconds(harness) + 90, newer=2, older=1)
    await again.look()
    assert await harness.head() == 2
    sessions.add(18, seconds(harness) + 150, newer=2, older=1)
    await again.look()
    assert "over 30 pairs" in (await harness.models.head_moves(MODEL))[-1].reason


async def test_a_canary_that_does_worse_than_head_ends_and_head_stays(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 1)
    await begin(releases, 2, 0.5)
    sessions.add(30, seconds(harness) + 10, newer=2, older=1)
    await watcher(harness, releases, sessions).look()
    assert (await harness.head(), await under_way(harness)) == (1, None)
    last = (await releases.changes(MODEL))[-1]
    assert last.actor == "gate (the registry)"
    assert last.reason.startswith("over 30 pairs of graded sessions v2 did worse than v1")


async def test_an_older_checkpoint_that_is_not_the_predecessor_takes_no_place(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    await begin(releases, 0, 0.5)
    sessions.add(40, seconds(harness) + 10, newer=2, older=0)
    await watcher(harness, releases, sessions).look()
    assert await harness.head() == 2
    assert await under_way(harness) is not None


async def test_a_release_that_an_operator_changed_meanwhile_is_not_ended_for_the_one_before(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 1)
    await begin(releases, 2, 0.5)
    sessions.add(30, seconds(harness) + 10, newer=2, older=1)
    listed = sessions.since

    async def changed_meanwhile(model: str, graded_since: datetime) -> Sequence[GradedSession]:
        if len(sessions.asked) == 0:
            await begin(releases, 0, 0.5)
        return await listed(model, graded_since)

    sessions.since = changed_meanwhile  # type: ignore[method-assign]
    await watcher(harness, releases, sessions).look()
    release = await under_way(harness)
    assert release is not None
    assert release.version == 0


async def test_a_release_of_a_person_called_gate_does_not_end_undecided(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    order = ReleaseOrder(MODEL, checkpoint_id(MODEL, 1), 0.5, 0.0, "gate", "mine", "operator")
    await releases.set_release(order, head_revision=None)
    sessions.add(4, seconds(harness) + 10, newer=2, older=1)
    sessions.add(4, seconds(harness) + 30, newer=1, older=2)
    await watcher(harness, releases, sessions, pairs=8).look()
    assert await under_way(harness) is not None


async def test_a_shadow_alone_is_no_release_of_conversations(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    await begin(releases, 1, 0.0, shadow=1.0)
    sessions.add(40, seconds(harness) + 10, newer=2, older=1)
    await watcher(harness, releases, sessions).look()
    assert (await harness.head(), sessions.asked) == (2, [])


async def test_with_a_share_the_predecessor_of_each_new_head_is_released_once_and_ends_undecided(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    watch = watcher(harness, releases, sessions, share=0.25, pairs=8)
    await watch.look()
    begun = await under_way(harness)
    assert begun is not None
    assert (begun.version, begun.share, begun.actor) == (1, 0.25, "gate (the registry)")
    sessions.add(4, seconds(harness) + 10, newer=2, older=1)
    sessions.add(4, seconds(harness) + 30, newer=1, older=2)
    await watch.look()
    assert await under_way(harness) is None
    assert "do not show v2 to be worse" in (await releases.changes(MODEL))[-1].reason
    for again in (watch, watcher(harness, releases, sessions, share=0.25)):
        await again.look()
        assert await under_way(harness) is None


async def test_a_release_that_no_engine_has_room_for_is_offered_again(
    harness: RegistryHarness, releases: CanaryReleases, sessions: SessionsDouble
) -> None:
    await head_at(harness, 1)
    harness.clock.forward(120)  # the engine is gone
    watch = watcher(harness, releases, sessions, share=0.1)
    await watch.look()
    assert await under_way(harness) is None
    await with_engine(harness)
    await watch.look()
    assert await under_way(harness) is not None


class BegunMeanwhile(CanaryReleases):
    """A person, or another registry, begins a release right after it was looked whether there is one."""

    async def changes(self, model: str) -> list[CanaryRelease]:
        found = await super().changes(model)
        if not found:
            await begin(self, 0, 0.5)
        return found


async def test_the_registry_begins_no_release_over_one_that_began_meanwhile(
    harness: RegistryHarness, sessions: SessionsDouble
) -> None:
    await head_at(harness, 2)
    releases = BegunMeanwhile(SqlCanaryReleases(harness.database), now=harness.clock)
    await watcher(harness, releases, sessions, share=0.25).look()
    (only,) = await releases.changes(MODEL)
    assert (only.version, only.share) == (0, 0.5)
    assert await under_way(harness) == only
