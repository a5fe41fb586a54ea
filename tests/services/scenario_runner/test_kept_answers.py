"""What a fleet keeps of graded episodes: answers to a grade that is asked for again, and only so many."""

import gc
import itertools
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from blob_store import BlobRef
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EpisodeFault,
    EpisodeToPlay,
    Grade,
    PythonEnvironment,
    ScenarioTranscript,
    UnknownLease,
)
from scenario_runner.usecases.leases import LeaseRules, Leases

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Answer(dict[str, Any]):
    """Of a trajectory; a dict alone takes no weak reference."""


class Playing:
    """An environment whose grade says yes, or raises whatever is answered."""

    prompt = ()
    tools = ()
    source_digest = "d"
    first_state = None
    guidance = ""
    guidance_parts: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, raises: bool) -> None:
        self.raises = raises

    async def grade(self, answer: str, trajectory: Mapping[str, Any], judge: object) -> Grade:
        if self.raises:
            raise EpisodeFault("scenario_error", "it raises")
        return Grade(1.0, True, (), {}, 0.0)

    async def close(self) -> None: ...


class Everything:
    """Host, episodes and transcripts of a fleet."""

    def __init__(self) -> None:
        self.raises = False
        self.read_last: weakref.ref[Answer] | None = None

    async def start(self, episode: EpisodeToPlay) -> Any:
        return Playing(raises=self.raises)

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        return EpisodeToPlay(episode_id, PythonEnvironment("e", "/e.py"), "s", "{}", NOW)

    async def read(self, body: BlobRef) -> ScenarioTranscript:
        trajectory = Answer(turns=[])
        self.read_last = weakref.ref(trajectory)
        return ScenarioTranscript(body.key, "x", trajectory)


def fleet(outside: Any, max_ended: int) -> Leases:
    numbers = itertools.count()
    new_id: Callable[[str], str] = lambda prefix: f"{prefix}-{next(numbers)}"  # noqa: E731
    rules = LeaseRules(8, 60.0, max_ended)
    return Leases(outside, outside, outside, rules, now=lambda: NOW, new_id=new_id)


def body_of(number: int) -> BlobRef:
    return BlobRef(f"episode-{number}", "a" * 64, 9)


async def test_of_many_graded_episodes_the_newest_answers_are_kept() -> None:
    leases = fleet(Everything(), max_ended=3)
    played = [(await leases.open(f"episode-{number}")).lease_id for number in range(2)]
    for number, lease in enumerate(played):
        assert (await leases.grade(lease, body_of(number))).reward == 1.0
    opened = (await leases.open("episode-2")).lease_id  # one that is played is none of those that ended
    for number in range(3, 6):
        lease = (await leases.open(f"episode-{number}")).lease_id
        await leases.grade(lease, body_of(number))
        played.append(lease)
    for number, lease in zip((0, 1), played[:2], strict=True):
        with pytest.raises(UnknownLease):
            await leases.grade(lease, body_of(number))
    for number, lease in zip((3, 4, 5), played[2:], strict=True):
        assert (await leases.grade(lease, body_of(number))).reward == 1.0
    assert (await leases.grade(opened, body_of(2))).reward == 1.0
    assert leases.num_alive == 0


@pytest.mark.parametrize("raises", [False, True])
async def test_a_kept_answer_holds_nothing_of_what_was_graded(raises: bool) -> None:
    outside = Everything()
    outside.raises = raises
    leases = fleet(outside, max_ended=3)
    lease = (await leases.open("episode-0")).lease_id
    if raises:
        with pytest.raises(EnvironmentBroken):
            await leases.grade(lease, body_of(0))
    else:
        await leases.grade(lease, body_of(0))
    gc.collect()
    assert outside.read_last is not None
    assert outside.read_last() is None
    assert lease in leases._leases
