"""From stored bodies to rows, and what no body may be."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.grpo_trainer.bench import Episodes, World, submission

from grpo_trainer import wire
from grpo_trainer.domain.errors import Untrainable, UnusableTrajectory
from grpo_trainer.domain.token_rows import EpisodeTokens, episode_tokens, row_counts
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory
from upcycle.api.trajectory.v1.trajectory_pb2 import TokenVersions, Turn

UNREADABLE = "not JSON"


def turn(prompt: int, sampled: int, **changes: object) -> Turn:
    values: dict[str, object] = {
        "new_prompt_ids": [1] * prompt,
        "sampled_ids": [2] * sampled,
        "sampled_logprobs": [-0.5] * sampled,
        "versions": [TokenVersions(version=3, num_tokens=sampled)],
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


def tokens(*turns: Turn, train_parse_errors: bool = False) -> EpisodeTokens:
    return episode_tokens("t", turns, temperature=1.0, train_parse_errors=train_parse_errors)


def test_turns_join_into_one_row_and_observations_are_not_trained() -> None:
    (row,) = tokens(turn(2, 1), turn(3, 2)).rows
    assert list(row.token_ids) == [1, 1, 2, 1, 1, 1, 2, 2]
    assert list(row.trained) == [False, False, True, False, False, False, True, True]
    assert list(row.turns) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [lp for lp, train in zip(row.logprobs, row.trained, strict=True) if train] == [-0.5] * 3


def test_a_compacted_context_begins_a_new_row() -> None:
    rows = tokens(turn(2, 1), turn(4, 1, restarts_context=True), turn(1, 1)).rows
    assert [len(row.token_ids) for row in rows] == [3, 7]
    assert list(rows[1].turns) == [0, 0, 0, 0, 0, 1, 1]


def test_a_turn_that_could_not_be_read_is_marked_and_can_be_left_out() -> None:
    odd = turn(1, 2, parse_error=UNREADABLE)
    (row,) = tokens(turn(2, 1), odd, turn(1, 1)).rows
    assert (sum(row.trained), row.unreadable) == (4, frozenset({1}))
    readable = row.readable
    assert list(readable.trained) == [False, False, True, False, False, False, False, True]
    assert readable.logprobs[3:7].tolist() == [0.0] * 4
    assert (sum(row.trained), row.logprobs[4]) == (4, -0.5), "the row itself stays as it is"
    (last,) = tokens(turn(2, 1), odd).rows
    assert len(last.token_ids) == 6
    assert list(last.readable.token_ids) == [1, 1, 2], "nothing is learned from what follows"
    assert tokens(turn(2, 1), odd, train_parse_errors=True).num_unreadable == 0


def test_unreadable_turns_are_counted_over_all_rows_and_turns() -> None:
    odd = {"parse_error": UNREADABLE}
    one = tokens(turn(2, 1), turn(1, 2, **odd), turn(2, 1, restarts_context=True, **odd))
    assert [row.unreadable for row in one.rows] == [{1}, {0}]
    assert [row.first_turn for row in one.rows] == [0, 2]
    counted = row_counts([one, tokens(turn(2, 1))])
    assert counted == {"context_forks": 1.0, "unreadable_turns": 2.0, "unreadable_fraction": 0.5}


def test_a_token_that_waits_takes_no_more_bytes_than_its_values_have() -> None:
    """Groups of all open steps wait in memory, of long episodes some GB as Python's numbers."""
    long = [turn(60, 40, sampled_logprobs=[-0.5 - at / 64 for at in range(40)]) for _ in range(100)]
    tokens(*long)  # what is made once
    tracemalloc.start()
    held = tokens(*long)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (row,) = held.rows
    assert len(row.token_ids) == 10_000
    assert size < 16 * 10_000


def test_tokens_after_the_last_trained_one_are_cut_off() -> None:
    (row,) = tokens(turn(2, 1), turn(5, 0)).rows
    assert len(row.token_ids) == 3


@pytest.mark.parametrize(
    ("reason", "is_cut_off"),
    [
        (trajectory.STOP_REASON_MAX_TOKENS, True),
        (trajectory.STOP_REASON_MAX_TURNS, True),
        (trajectory.STOP_REASON_ANSWERED, False),
        (trajectory.STOP_REASON_DONE, False),
        (trajectory.STOP_REASON_FAILED, False),
    ],
)
async def test_a_budget_of_turns_cuts_an_episode_off_as_one_of_tokens_does(
    world: World, reason: trajectory.StopReason.ValueType, is_cut_off: bool
) -> None:
    fact = await Episodes(world).fact(0, 0, 1.0)
    fact.stop_reason, fact.num_sampled_tokens = reason, 17
    graded = wire.graded_from_wire(fact, 1, {})
    assert (graded.cut_off, graded.num_tokens) == (is_cut_off, 17)


async def test_a_guided_trajectory_trains_and_is_known_as_guided(world: World) -> None:
    fact = await Episodes(world).fact(0, 0, 1.0)
    assert not wire.graded_from_wire(fact, 1, {}).guided
    fact.episode.guided_after = "run-1-g00000-e000-a0"
    graded = wire.graded_from_wire(fact, 1, {})
    assert (graded.guided, graded.may_train, graded.guidance_kinds) == (True, True, ())
    fact.guidance_kinds.extend(["plan", "hint"])
    assert wire.graded_from_wire(fact, 1, {}).guidance_kinds == ("plan", "hint")


async def test_a_trajectory_knows_its_taskset_without_the_revision(world: World) -> None:
    fact = await Episodes(world).fact(0, 0, 1.0)
    fact.episode.taskset = "disks@2"
    assert wire.graded_from_wire(fact, 1, {}).taskset == "disks"


def test_versions_span_all_sampled_tokens() -> None:
    spans = [TokenVersions(version=4, num_tokens=1), TokenVersions(version=5, num_tokens=2)]
    mixed = tokens(turn(1, 3, versions=spans), turn(1, 1, versions=spans[:1]))
    assert (mixed.oldest_version, mixed.newest_version) == (4, 5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampled_logprobs": [-0.5]}, "2 sampled ids and 1 logprobs"),
        ({"versions": [TokenVersions(version=1, num_tokens=1)]}, "versions do not cover"),
        ({"sampled_logprobs": [0.5, -1.0]}, "above 0"),
        ({"new_prompt_ids": []}, "begins with a prompt"),
    ],
)
def test_bodies_that_cannot_be_what_was_sampled_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UnusableTrajectory, match=said):
        tokens(turn(2, 2, **change))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_has_no_ratio_is_refused(temperature: float) -> None:
    with pytest.raises(UnusableTrajectory, match="temperature"):
        episode_tokens("t", [turn(1, 1)], temperature=temperature, train_parse_errors=False)


def test_an_episode_in_which_nothing_was_sampled_is_refused() -> None:
    with pytest.raises(Untrainable, match="no policy of ours sampled it"):
        tokens(turn(3, 0))


@given(
    shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans(), st.booleans()), min_size=1)
)
def test_every_sampled_token_is_trained_once_or_masked(shapes: list[tuple[int, int, bool, bool]]) -> None:
    turns = [
        turn(prompt, sampled, restarts_context=restart, parse_error="not JSON" if odd else "")
        for prompt, sampled, restart, odd in shapes
    ]
    wanted = sum(sampled for _, sampled, _, odd in shapes if not odd)
    if sum(sampled for _, sampled, _, _ in shapes) == 0:
        return
    assert sum(sum(row.readable.trained) for row in tokens(*turns).rows) == wanted


async def test_a_body_that_disagrees_with_its_fact_is_refused(world: World) -> None:
    episodes = Episodes(world)
    fact = await episodes.fact(0, 0, 1.0)
    body = episodes.body(0, 0)
    graded = wire.graded_from_wire(fact, 1, {})
    assert wire.tokens_from_body(body, graded, train_parse_errors=False).num_trained > 0
    for field, value in (("task_digest", "other"), ("group_id", "g"), ("member", 3), ("run_id", "r")):
        odd = episodes.body(0, 0)
        setattr(odd.episode, field, value)
        with pytest.raises(UnusableTrajectory, match=r"the event (has|names)"):
            wire.tokens_from_body(odd, graded, train_parse_errors=False)
    fresher = episodes.body(0, 0, version=4)
    with pytest.raises(UnusableTrajectory, match="staleness cannot be trusted"):
        wire.tokens_from_body(fresher, graded, train_parse_errors=False)


def test_a_submission_without_a_number_takes_the_default_of_the_contract() -> None:
    submitted = submission()
    for name in ("steps", "learning_rate", "checkpoint_every_steps", "prompts_per_step"):
        submitted.spec.training.ClearField(name)
    spec = wire.spec_from_wire(submitted)
    assert (spec.steps, spec.prompts_per_step, spec.max_staleness) == (100, 16, 4)
    assert (spec.learning_rate, spec.max_grad_norm, spec.loss, spec.advantage) == (
        1e-6,
        1.0,
        "ppo",
        "dr_grpo",
    )
    assert (spec.checkpoint_every_steps, spec.adam_beta1, spec.adam_beta2) == (10, 0.9, 0.95)
