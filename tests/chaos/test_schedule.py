"""What makes a campaign repeatable, and what it refuses."""

import math
from collections.abc import Callable
from itertools import islice

import pytest
from tests.chaos import soak
from tests.chaos.__main__ import main, parse, refusal
from tests.chaos.campaign import not_reached
from tests.chaos.schedule import HOLD_S, SEEDS_FOR_ALL, schedule

TARGETS = {
    "kill": ["nats", "grpo_trainer", "grpo_trainer-2"],
    "freeze": ["scenario_runner", "scenario_runner-2"],
    "cut": ["grpo_trainer>s3", "rollout_sampler-2>nats"],
}


def test_the_same_seed_breaks_the_same_things_for_as_long() -> None:
    first, again, other = (list(islice(schedule(seed, TARGETS), 40)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_kind_comes_in_each_round_and_a_kill_after_each_of_them() -> None:
    kinds = [planned.kind for planned in islice(schedule(7, TARGETS), 8)]
    assert kinds[1::2] == ["kill"] * 4
    assert {*kinds[0:4:2]} == {*kinds[4:8:2]} == {"freeze", "cut"}


def test_three_seeds_in_a_row_begin_with_every_kind_there_is() -> None:
    """A campaign of four minutes sees four or five faults of a round; some kinds were never injected."""
    targets = {kind: ["nats"] for kind in HOLD_S}
    others = len(HOLD_S) - 1
    for first in range(20):
        begun = [
            planned.kind
            for seed in range(first, first + SEEDS_FOR_ALL)
            for planned in islice(schedule(seed, targets), 2 * math.ceil(others / SEEDS_FOR_ALL))
        ]
        assert {*begun} == {*HOLD_S}


def test_kinds_that_did_not_come_are_named() -> None:
    assert not_reached({"kill", "slow", "clock_jump"}, {"kill": 2, "slow": 1}) == ["clock_jump"]


def test_a_fault_hits_what_it_may_and_ends_within_its_bounds() -> None:
    for planned in islice(schedule(7, TARGETS), 40):
        shortest, longest = HOLD_S[planned.kind]
        assert planned.target in TARGETS[planned.kind]
        assert shortest <= planned.hold_s <= longest


def test_a_kind_that_does_not_exist_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--kinds", "kill,bogus", "--duration-s", "0"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "KINDS has no bogus: there is kill, freeze, rolling_restart" in said.err


@pytest.mark.parametrize("command", [main, soak.main])
def test_two_replicas_on_sqlite_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int]
) -> None:
    assert command(["--replicas", "2", "--backend", "sqlite"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "REPLICAS=2 needs BACKEND=postgres: a SQLite file has one owner by design" in said.err


def test_one_replica_on_sqlite_is_not_refused() -> None:
    assert refusal(parse([])) is None
