"""A turn with a thinking budget: where its thinking is ended, by which tokens, and what of it may train."""

from typing import Any

import pytest
from tests.services.rollout_sampler.conftest import Testbed

from grpo_trainer.domain.token_rows import episode_tokens
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1.trajectory_pb2 import FINISH_REASON_STOP, TrajectoryBody
from upcycle.run_config import Sampling

BUDGET = 20


def endless_thinker(prompt: str, _: object) -> str:
    """Thinks until it is told to stop; then it answers."""
    return "OOM" if "</think>" in prompt else "<think>" + " checkout" * 300


async def played(bed: Testbed, **changes: Any) -> TrajectoryBody:
    """One episode of a run whose turns think for BUDGET tokens."""
    sampling = taskset_pb2.SamplingConfig(thinking=str(BUDGET), max_turns=1, **changes)
    await bed.sampler()
    await bed.ask(bed.request(sampling=sampling))
    (fact,) = await bed.outcomes(1)
    return await bed.body(fact)


async def test_thinking_that_spends_its_budget_is_ended_and_the_turn_goes_on_to_its_answer(
    bed: Testbed,
) -> None:
    engine = await bed.engine(endless_thinker)
    body = await played(bed, max_tokens_per_turn=60)
    (turn,) = body.turns
    end = bed.chat.encode("\n</think>\n\n")
    first, second = engine.requests
    assert (turn.inserted_start, turn.num_inserted) == (BUDGET, len(end))
    assert list(turn.sampled_ids[BUDGET : BUDGET + len(end)]) == end
    assert first["sampling_params"]["max_tokens"] == BUDGET
    assert second["sampling_params"]["max_tokens"] == 60 - BUDGET - len(end)
    assert second["token_ids"] == [*turn.new_prompt_ids, *turn.sampled_ids[: BUDGET + len(end)]]
    assert first["sampling_params"]["seed"] != second["sampling_params"]["seed"]
    assert (body.answer, turn.text) == ("OOM", "OOM")
    assert turn.reasoning == "checkout check"
    assert turn.finish_reason == FINISH_REASON_STOP
    assert "".join(turn.sampled_texts) == bed.chat.decode(turn.sampled_ids)


async def test_the_inserted_end_of_thinking_never_trains(bed: Testbed) -> None:
    await bed.engine(endless_thinker)
    body = await played(bed, max_tokens_per_turn=60)
    (turn,) = body.turns
    (row,) = episode_tokens("traj-1", body.turns, temperature=1.0, train_parse_errors=True).rows
    trained = row.trained[len(turn.new_prompt_ids) :]
    after = BUDGET + turn.num_inserted
    written = len(turn.sampled_ids) - after
    assert list(trained) == [True] * BUDGET + [False] * turn.num_inserted + [True] * written
    assert set(turn.sampled_logprobs[BUDGET:after]) == {0.0}
    assert all(turn.sampled_logprobs[:BUDGET])
    assert all(turn.sampled_logprobs[after:])


@pytest.mark.parametrize("written", ["<think> OOM </think>" + " checkout" * 300, " checkout" * 300])
async def test_nothing_is_inserted_where_no_thinking_is_open(bed: Testbed, written: str) -> None:
    await bed.engine(lambda prompt, _: "OOM" if len(prompt) > 500 else written)
    (turn,) = (await played(bed, max_tokens_per_turn=400)).turns
    assert turn.num_inserted == 0
    assert len(turn.sampled_ids) > BUDGET


async def test_reasoning_is_kept_apart_and_the_tokens_stay_as_they_were_sampled(bed: Testbed) -> None:
    said = "<think>\nIs it the pool?\n</think>\n\nOOM"
    await bed.engine(lambda _, __: said)
    await bed.sampler()
    await bed.ask(bed.request(sampling=taskset_pb2.SamplingConfig(max_turns=1)))
    (fact,) = await bed.outcomes(1)
    body = await bed.body(fact)
    (turn,) = body.turns
    assert (turn.reasoning, turn.text, body.answer) == ("Is it the pool?", "OOM", "OOM")
    assert "".join(turn.sampled_texts).startswith(said)
    assert bed.chat.decode(turn.sampled_ids).startswith(said)


async def test_a_turn_within_its_budget_is_one_request(bed: Testbed) -> None:
    engine = await bed.engine(lambda _, __: "OOM")
    (turn,) = (await played(bed, max_tokens_per_turn=60)).turns
    assert len(engine.requests) == 1
    assert turn.num_inserted == 0


async def test_a_turn_without_room_after_the_end_of_its_thinking_is_cut(bed: Testbed) -> None:
    engine = await bed.engine(endless_thinker)
    body = await played(bed, max_tokens_per_turn=BUDGET + 1)
    assert len(engine.requests) == 1
    assert len(body.turns[0].sampled_ids) == BUDGET
    assert body.answer == ""


def test_a_budget_must_leave_room_for_an_answer() -> None:
    assert Sampling(thinking="256", max_tokens_per_turn=257).thinking_budget == 256
    assert Sampling(thinking="0256", max_tokens_per_turn=257).thinking == "256"
    with pytest.raises(ValueError, match="a budget of 1 to 1048576 tokens"):
        Sampling(thinking="0000000019999999", max_tokens_per_turn=257)
    with pytest.raises(ValueError, match="no token is left for the answer"):
        Sampling(thinking="256", max_tokens_per_turn=256)
