"""The ablations of the seeds' methods: each runs, and its mechanism shows on the smallest task."""

from __future__ import annotations

import json

import pytest
from benchmarks.study.__main__ import main
from benchmarks.study.arms import interval, spec_of, trained
from benchmarks.study.corridor import Kinds, Table
from benchmarks.study.methods import STUDIES


def test_a_group_of_the_corridor_is_paid_as_it_says() -> None:
    kinds = Kinds(turns=(2,), start=(50.0,), detour_cost=0.25)
    group = Table(kinds, spec_of(), 0).play(0)
    assert group.rewards == [1.0] * 8
    assert group.turn_rewards == [(1.0, 1.0)] * 8
    table = Table(kinds, spec_of(), 0)
    table.logits.data[0, :, 1] = 100.0  # detours alone
    group = table.play(0)
    assert (group.rewards[0], group.successes[0], group.turn_rewards[0]) == (0.5, True, (0.0, 0.0))
    assert table.success() == pytest.approx(1.0)
    assert table.reward() == pytest.approx(0.5)


def test_an_interval_is_that_of_student() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)


def test_credit_by_turn_learns_what_the_outcome_alone_hardly_shows() -> None:
    kinds = Kinds(turns=(8,), actions=6, start=(1.0,))
    by_turn = trained(kinds, 0, steps=25, prompts_per_step=2, turn_credit="turn")
    by_episode = trained(kinds, 0, steps=25, prompts_per_step=2)
    assert by_turn["success"] > 2 * by_episode["success"]
    assert by_turn["drawn"] < by_episode["drawn"]


def test_without_a_warm_start_there_is_nothing_to_reinforce() -> None:
    kinds = Kinds(turns=(10,), actions=8, start=(0.0,))
    alone = trained(kinds, 0, steps=10, prompts_per_step=2)
    begun = trained(
        kinds, 0, steps=10, prompts_per_step=2, before=lambda table: table.sft(steps=80, per_kind=8)
    )
    assert alone["success"] < 0.01
    assert begun["success"] > 0.05


def test_a_study_ends_with_one_json_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {name: one for name, one in STUDIES.items() if name == "task_sampler"}
    monkeypatch.setattr("benchmarks.study.arms._MOST_DRAWN", 1)
    assert set(short) == {"task_sampler"}
    assert main(["task_sampler", "--seeds", "1"]) == 0
    *_, last = capsys.readouterr().out.strip().splitlines()
    found = json.loads(last)
    assert set(found["arms"]) == {"uniform (default)", "spread", "age"}
    assert all(0 < arm["success"][0] <= 1 for arm in found["arms"].values())


def test_guidance_lets_a_policy_begin_that_never_succeeds_and_is_measured_without() -> None:
    kinds = Kinds(turns=(10,), actions=8, start=(0.0,))
    alone = trained(kinds, 0, steps=25, prompts_per_step=2)
    guided = trained(kinds, 0, steps=25, prompts_per_step=2, guidance="on_failure", guidance_max_share=0.5)
    assert alone["success"] < 1e-4
    assert guided["success"] > 20 * alone["success"]
    table = Table(kinds, spec_of(), 0)
    before = table.success()
    table.play(0, hint=3.0)
    assert table.success() == before, "a hint in a prompt is no part of the policy"


def test_a_guided_group_trains_with_its_hint_in_the_prompt() -> None:
    """On policy: what the trainer computes is what the sampler said, so that no ratio is far from 1."""
    table = Table(Kinds(turns=(3,), actions=4), spec_of(), 0)
    group = table.play(0, hint=2.0)
    flat = [[[0.0] * 3] * 8]
    tokens = table._tokens([group], flat)
    assert tokens.trainer_logprobs.tolist() == pytest.approx(tokens.sampler_logprobs.tolist())
