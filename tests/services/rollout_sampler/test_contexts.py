"""A context that is full: the episode stops, or it goes on in a shorter one whose tokens are told apart."""

import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import EngineDouble, tool_call

from grpo_trainer.domain.token_rows import episode_tokens
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.run_config import Sampling

TURNS = 7
SEEN = "the checkout service answered slowly " * 8


def looks_around(prompt: str, _: object) -> str:
    """Calls its tool with the number of the turn, then answers."""
    said = prompt.count("looks")
    return "OOM" if said >= TURNS else tool_call("looks", at=said)


async def played(bed: Testbed, **changes: object) -> tuple[EngineDouble, TrajectoryBody]:
    bed.environments.tools = {"looks": lambda _: SEEN}
    engine = await bed.engine(looks_around)
    await bed.sampler()
    asked = {"max_turns": 20, "max_tokens_per_turn": 80, "max_tokens_per_episode": 900, **changes}
    await bed.ask(bed.request(sampling=taskset_pb2.SamplingConfig(**asked)))  # type: ignore[arg-type]
    (fact,) = await bed.outcomes(1)
    return engine, await bed.body(fact)


async def test_older_results_give_way_and_the_episode_comes_to_its_answer(bed: Testbed) -> None:
    engine, body = await played(bed, context="compress")
    assert (body.stop_reason, body.answer) == (trajectory_pb2.STOP_REASON_ANSWERED, "OOM")
    new = [index for index, turn in enumerate(body.turns) if turn.restarts_context]
    assert new
    assert new[0] > 0
    context: list[int] = []
    for turn, request in zip(body.turns, engine.requests, strict=True):
        context = [*([] if turn.restarts_context else context), *turn.new_prompt_ids]
        assert request["token_ids"] == context  # what the engine read, token for token
        assert len(context) + request["sampling_params"]["max_tokens"] <= 900
        context += turn.sampled_ids
    shown = bed.chat.decode(body.turns[new[0]].new_prompt_ids)
    assert shown.count(f"[an earlier result of {len(SEEN)} characters was left out]") == new[0] - 1
    assert shown.count(SEEN.strip()) == 1  # the last one
    assert all(turn.tool_calls[0].arguments_json in shown for turn in body.turns[: new[0]])  # all actions
    assert all(turn.tool_results[0].content == SEEN for turn in body.turns[:-1])  # the record is whole


async def test_each_sampled_token_trains_once_in_the_context_in_which_it_was_sampled(bed: Testbed) -> None:
    _, body = await played(bed, context="compress")
    rows = episode_tokens("traj-1", body.turns, temperature=1.0, train_parse_errors=True).rows
    assert len(rows) == 1 + sum(turn.restarts_context for turn in body.turns) > 1
    trained = [
        token for row in rows for token, trains in zip(row.token_ids, row.trained, strict=True) if trains
    ]
    assert trained == [token for turn in body.turns for token in turn.sampled_ids]
    logprobs = [
        logprob for row in rows for logprob, trains in zip(row.logprobs, row.trained, strict=True) if trains
    ]
    assert logprobs == pytest.approx([one for turn in body.turns for one in turn.sampled_logprobs])


@pytest.mark.parametrize("context", ["stop", ""])
async def test_without_it_a_full_context_ends_the_episode(bed: Testbed, context: str) -> None:
    _, body = await played(bed, **({"context": context} if context else {}))
    assert (body.stop_reason, body.answer) == (trajectory_pb2.STOP_REASON_MAX_TOKENS, "")
    assert not any(turn.restarts_context for turn in body.turns)


async def test_a_context_of_which_nothing_can_be_left_out_ends_the_episode(bed: Testbed) -> None:
    _, body = await played(bed, context="compress", max_tokens_per_episode=420)
    assert body.stop_reason == trajectory_pb2.STOP_REASON_MAX_TOKENS
    assert [turn.restarts_context for turn in body.turns] == [False]


def test_a_run_names_a_policy_that_exists() -> None:
    assert Sampling().context == "stop"
    with pytest.raises(ValueError, match="'summarise'"):
        Sampling(context="summarise")
