"""The continuous batch: who gets a slot, what is reused, what a reload does to running sequences."""

from pathlib import Path

import pytest
import torch
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.reference import reference_logprobs

from embedded_engine.model_runner import ModelRunner, RunnerLimits
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import ABORT, LENGTH, STOP, Sequence
from embedded_engine.weights import load_weights


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("policies")
    return [make_policy(folder / f"p{seed}", seed) for seed in range(3)]


def make_runner(directory: Path, **limits: int) -> ModelRunner:
    sizes = {"max_running": 8, "max_len": 512, "chunk_tokens": 64, "num_slots": 12, **limits}
    runner = ModelRunner(load_weights(directory), RunnerLimits(**sizes), lambda ids: "".join(map(chr, ids)))
    runner.label = "0"
    return runner


def sequence(prompt: list[int], max_tokens: int = 12, **changes: object) -> Sequence:
    spec = SamplingSpec(**{"max_tokens": max_tokens, "temperature": 1.0, "seed": sum(prompt), **changes})  # type: ignore[arg-type]
    return Sequence(prompt, spec, lambda progress: None)


def run(runner: ModelRunner, *sequences: Sequence) -> None:
    for one in sequences:
        runner.add(one)
    drain(runner)


def drain(runner: ModelRunner, steps: int = 2000) -> None:
    """Step until every sequence has ended."""
    with torch.inference_mode():
        for _ in range(steps):
            if not runner.busy:
                return
            runner.step()
    raise AssertionError("the sequences did not end")


def check(directory: Path, made: Sequence, start: int = 0, end: int | None = None) -> None:
    """The sequence's logprobs start..end are the reference's."""
    expected = reference_logprobs(directory, made.tokens)[made.num_prompt - 1 :]
    assert made.logprobs[start:end] == pytest.approx(expected[start:end], abs=1e-4)


def test_sequences_that_join_at_any_time_are_sampled_as_if_alone(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    sequences = [sequence(list(range(3 + i, 20 + 7 * i)), 10 + 3 * i) for i in range(8)]
    with torch.inference_mode():
        for one in sequences:
            runner.add(one)
            runner.step()
            runner.step()
    drain(runner)
    for one in sequences:
        assert one.finish_reason in (LENGTH, STOP)
        check(policies[0], one)


def test_more_sequences_than_places_wait_their_turn(policies: list[Path]) -> None:
    runner = make_runner(policies[0], max_running=3, num_slots=4)
    sequences = [sequence([5 + i, 6, 7], 6) for i in range(10)]
    with torch.inference_mode():
        for one in sequences:
            runner.add(one)
        runner.step()
        assert (len(runner.running), len(runner.waiting)) == (3, 7)
    drain(runner)
    assert all(len(one.logprobs) > 0 for one in sequences)


def test_the_next_turn_computes_only_its_new_tokens(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    first = sequence(list(range(10, 60)), 8)
    run(runner, first)
    second = sequence([*first.tokens, 7, 8, 9], 8)
    run(runner, second)
    assert second.num_cached == len(first.tokens) - 1, "all but the last sampled token were computed"
    check(policies[0], second)


def test_rollouts_of_one_prompt_compute_it_once(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    prompt = list(range(10, 110))
    group = [sequence(prompt, 6, seed=i) for i in range(6)]
    run(runner, *group)
    assert [one.num_cached for one in group].count(0) == 1
    assert all(one.num_cached == 99 for one in group[1:])
    assert runner.counts.cached_tokens == 5 * 99
    for one in group:
        check(policies[0], one)


def test_a_fresh_start_does_not_take_a_conversations_place(policies: list[Path]) -> None:
    """Another rollout of the task copies the shared prompt and leaves the conversation alone."""
    runner = make_runner(policies[0])
    conversation = sequence(list(range(10, 60)), 20)
    run(runner, conversation)
    run(runner, sequence(list(range(10, 60)), 4, seed=99))
    next_turn = sequence([*conversation.tokens, 3], 4)
    run(runner, next_turn)
    assert next_turn.num_cached == len(conversation.tokens) - 1


def test_the_only_slot_is_taken_over_however_little_fits(policies: list[Path]) -> None:
    runner = make_runner(policies[0], max_running=1, num_slots=1)
    run(runner, sequence(list(range(10, 90)), 10))
    other = sequence([*range(10, 40), *range(100, 120)], 6)
    run(runner, other)
    assert other.num_cached == 30
    check(policies[0], other)


def test_a_reload_stamps_tokens_and_stops_reuse(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    running = sequence(list(range(10, 40)), 30, stop_token_ids=frozenset())
    idle = sequence(list(range(100, 150)), 4)
    run(runner, idle)
    runner.add(running)
    with torch.inference_mode():
        for _ in range(10):
            runner.step()
    sampled = running.num_sampled
    runner.reload(load_weights(policies[1]))
    runner.label = "1"
    runner.reset_prefix_cache(recompute_running=True)
    drain(runner)
    assert running.version_spans() == [
        {"version": "0", "start": 0, "end": sampled},
        {"version": "1", "start": sampled, "end": 30},
    ]
    check(policies[0], running, 0, sampled)
    check(policies[1], running, sampled)
    again = sequence([*idle.tokens, 3], 4)
    run(runner, again)
    assert again.num_cached == 0
    check(policies[1], again)


def test_keys_and_values_of_old_weights_are_not_reused(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    running = sequence(list(range(10, 40)), 30, stop_token_ids=frozenset())
    runner.add(running)
    with torch.inference_mode():
        for _ in range(8):
            runner.step()
    runner.reload(load_weights(policies[1]))
    runner.reset_prefix_cache(recompute_running=False)
    drain(runner)
    assert running.num_sampled == 30
    next_turn = sequence([*running.tokens, 3], 6)
    run(runner, next_turn)
    assert next_turn.num_cached == 0
    check(policies[1], next_turn)


def test_an_aborted_sequence_is_aborted_wherever_it_is(policies: list[Path]) -> None:
    runner = make_runner(policies[0], max_running=1, num_slots=2)
    running, waiting = sequence([5, 6], 50), sequence([7, 8], 50)
    runner.add(running)
    runner.add(waiting)
    with torch.inference_mode():
        runner.step()
        runner.step()
    assert runner.abort(waiting)
    assert runner.abort(running)
    assert not runner.abort(running), "it had ended"
    assert running.finish_reason == waiting.finish_reason == ABORT
    assert not runner.busy


def test_stops_by_token_text_budget_and_context(policies: list[Path]) -> None:
    runner = make_runner(policies[0], max_len=40)
    free = sequence([5, 6, 7], 20, temperature=0.0)
    run(runner, free)
    third = free.sampled[2]
    by_token = sequence([5, 6, 7], 20, temperature=0.0, stop_token_ids=frozenset({third}))
    run(runner, by_token)
    assert (by_token.finish_reason, by_token.stop_reason) == (STOP, third)
    assert by_token.sampled == free.sampled[: free.sampled.index(third) + 1]
    by_text = sequence([5, 6, 7], 20, temperature=0.0, stop=(chr(third),))
    run(runner, by_text)
    assert (by_text.finish_reason, by_text.stop_reason) == (STOP, chr(third))
    later = sequence([5, 6, 7], 20, temperature=0.0, stop_token_ids=frozenset({third}), min_tokens=5)
    run(runner, later)
    assert third not in later.sampled[:4]
    full = sequence(list(range(3, 38)), 20)
    run(runner, full)
    assert (full.finish_reason, len(full.tokens)) == (LENGTH, 40)


def test_prompts_are_scored_and_never_from_the_cache(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    prompt = list(range(10, 160))
    run(runner, sequence(prompt, 3))
    scored = sequence(prompt, 1, num_prompt_logprobs=2)
    run(runner, scored)
    expected = reference_logprobs(policies[0], prompt)
    assert [top.logprobs[0] for top in scored.prompt_logprobs] == pytest.approx(expected, abs=1e-4)
    assert [top.token_ids[0] for top in scored.prompt_logprobs] == prompt[1:]
    rows = [prompt[:20], prompt[30:99]]
    with torch.inference_mode():
        found = runner.score(rows)
    for row, values in zip(rows, found, strict=True):
        assert values == pytest.approx(reference_logprobs(policies[0], row), abs=1e-4)


def test_broken_weights_fail_their_sequences_and_nothing_lingers(policies: list[Path]) -> None:
    runner = make_runner(policies[0])
    good = load_weights(policies[0])
    broken = load_weights(policies[1])
    broken.head.fill_(float("nan"))
    runner.reload(broken)
    bad = sequence([5, 6, 7], 5)
    run(runner, bad)
    assert bad.finish_reason == "error"
    assert bad.error is not None
    runner.reload(good)
    fine = sequence([5, 6, 7], 5)
    run(runner, fine)
    check(policies[0], fine)
