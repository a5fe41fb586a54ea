"""The ablations of the seeds' methods: each runs, and its mechanism shows on the smallest task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.study.__main__ import main
from benchmarks.study.arms import draw, interval, spec_of, trained
from benchmarks.study.corridor import Kinds, Table
from benchmarks.study.curriculum import Curriculum, turns_of
from benchmarks.study.methods import STUDIES
from benchmarks.study.pages import LONG, Reader, measured_on, turn_contexts
from benchmarks.study.self_play import FROZEN, PAID, measured

from scenario_runner.domain.task_sampler import TaskPast


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


def test_what_a_limit_cut_off_is_compared_and_trains_unless_it_is_left_out() -> None:
    kinds = Kinds(turns=(3,), actions=4, start=(50.0,), cut_off=0.5)
    for options, is_left_out in (({}, False), ({"cut_off_episodes": "leave_out"}, True)):
        table = Table(kinds, spec_of(**options), 0)
        group = table.play(0)
        assert group.rewards == [0.0 if cut else 1.0 for cut in group.cut_off]
        assert 0 < sum(group.cut_off) < 8
        tokens = table._tokens([group], table._credits([group]))
        assert (float(tokens.advantages.min()) > 0) == is_left_out
        assert tokens.num_rows == 8 - is_left_out * sum(group.cut_off)


def test_success_within_a_limit_of_detours_is_that_of_what_is_played() -> None:
    table = Table(Kinds(turns=(4,), actions=3, most_detours=1), spec_of(), 0)
    assert table.success() == pytest.approx(5 / 81)
    played = [one for _ in range(400) for one in table.play(0).successes]
    assert sum(played) / len(played) == pytest.approx(5 / 81, abs=0.02)


def test_rate_and_kl_weight_of_the_corridor_follow_its_success() -> None:
    kinds = Kinds(turns=(2,), start=(4.0,))
    kl = {"kl_coefficient": 0.05}

    def drift(**options: Any) -> float:
        return trained(kinds, 0, steps=20, **options)["drift"]

    free, held = drift(), drift(loss_config=kl)
    assert drift(lr_success_decay=0.9) < 0.6 * free
    assert drift(loss_config=kl, kl_success_growth=20.0) < 0.6 * held < 0.6 * free


def test_a_full_context_ends_an_episode_or_begins_anew_without_the_first_page() -> None:
    """As the shipped compression decides it, on messages."""
    assert len(turn_contexts(8, "stop", thinks=True)) == 3
    contexts = turn_contexts(8, "compress", thinks=True)
    assert [at.number for at in contexts] == [0, 0, 0, 1, 1, 2, 2, 3]
    assert [at.sees_key for at in contexts] == [False, True, True, *[False] * 5]


def test_each_context_is_a_row_with_its_share_and_its_tokens_are_on_policy() -> None:
    table = Reader(spec_of(), 0, context="compress", thinks=True)
    group = table.play(LONG)
    assert group.actions.shape == (8, 9), "eight turns and a thought"
    tokens = table._tokens([group], [[[0.0] * 9] * 8])
    assert tokens.trainer_logprobs.tolist() == pytest.approx(tokens.sampler_logprobs.tolist())
    assert tokens.row_of_token[:9].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert tokens.turn_of_token is not None
    assert tokens.turn_of_token[:9].tolist() == [0, 1, 1, 2, 0, 1, 0, 1, 0]
    assert tokens.row_shares is not None
    assert tokens.row_shares[:4].tolist() == [3 / 8, 2 / 8, 2 / 8, 1 / 8]


def test_compression_goes_on_and_a_thought_keeps_what_was_left_out() -> None:
    stopped, compressed, with_thought = (
        measured_on(Reader(spec_of(steps=10, prompts_per_step=4), 0, context=context, thinks=thinks), 40)
        for context, thinks in (("stop", False), ("compress", False), ("compress", True))
    )
    assert stopped["long"] == 0.0
    assert 0.05 < compressed["long"] <= 0.25 + 1e-9, "it can only guess one of four keys"
    assert with_thought["long"] > 1.5 * compressed["long"]


def test_new_tasks_lead_a_policy_to_a_task_that_it_never_solves_by_itself() -> None:
    kinds = Kinds(turns=(10,), actions=8, start=(0.0,))
    chosen: dict[str, Any] = {"steps": 40, "prompts_per_step": 4, "learning_rate": 0.3}
    alone = trained(kinds, 0, **chosen)
    led = trained(kinds, 0, new_tasks="failed", new_tasks_share=0.5, **chosen)
    assert alone["success"] < 1e-4
    assert led["success"] > 1000 * alone["success"]
    assert trained(kinds, 0, new_tasks="solved", **chosen) == alone, "nothing is solved to make one of"


def test_a_curriculum_keeps_its_share_and_is_made_of_what_was_failed() -> None:
    kinds = Kinds(turns=(10,), actions=8, start=(0.0,))
    table = Table(kinds, spec_of(new_tasks="failed", prompts_per_step=4, learning_rate=0.3), 0)
    curriculum = Curriculum(kinds, table.spec, 0)
    for _ in range(10):
        if groups := draw(table, [TaskPast()], curriculum):
            table.learn(groups)
    lengths = [turns_of(row) for row in curriculum.rows]
    assert lengths[0] < 10
    assert min(lengths) < 4, "what is failed again is made shorter again"
    assert 0 < sum(row.num_trained + row.num_flat for row in curriculum.rows) <= table.drawn / 4


def test_who_is_paid_by_the_pass_rate_proposes_what_can_be_learned() -> None:
    """Of the same number of groups."""
    found = {teaches: measured(0, teaches=teaches, steps=25) for teaches in (FROZEN, PAID)}
    assert found[PAID]["useful"] > 1.3 * found[FROZEN]["useful"]
    assert found[PAID]["success"] > found[FROZEN]["success"]
    assert found[PAID]["valid"] > found[FROZEN]["valid"]
