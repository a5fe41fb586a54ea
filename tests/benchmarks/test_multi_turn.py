"""What the platform played is driven raw with the same lengths, and held against it run by run."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from benchmarks.multi_turn import Played, RawTurn, drive_raw, figure_of, played_of
from benchmarks.stacks import BenchmarkFailed

from engine_client import Completion, EngineClient, FinishReason, SamplingParams, TokenSpan
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody, Turn


def body(began_s: int, ended_s: int, *turns: Turn) -> TrajectoryBody:
    made = TrajectoryBody(turns=turns)
    made.started_at.FromSeconds(began_s)
    made.ended_at.FromSeconds(ended_s)
    return made


class Engine:
    """Samples the number 7 as often as it is asked to, or once less."""

    def __init__(self, lacks: int = 0) -> None:
        self.lacks = lacks
        self.asked: list[tuple[int, ...]] = []
        self.at_once = self.most_at_once = 0

    async def generate(self, model: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        self.asked.append(tuple(prompt_ids))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        count = sampling.max_tokens - self.lacks
        assert sampling.ignore_eos, "an early end would sample fewer tokens than the platform did"
        return Completion((7,) * count, (0.0,) * count, FinishReason.LENGTH, (TokenSpan(0, 0, count),))


def raw(engine: Engine, *episodes: tuple[RawTurn, ...], at_once: int) -> None:
    asyncio.run(drive_raw(cast(EngineClient, cast(Any, engine)), episodes, at_once))


def test_a_run_is_as_long_as_its_episodes_which_stand_in_the_order_of_their_begin() -> None:
    late = body(12, 20, Turn(new_prompt_ids=[5], sampled_ids=[6]))
    early = body(
        10, 15, Turn(new_prompt_ids=[1, 2], sampled_ids=[3]), Turn(new_prompt_ids=[4], sampled_ids=[8, 9])
    )
    played = played_of([late, early], run_s=11.5)
    assert played.episodes == ((RawTurn((1, 2), 1), RawTurn((4,), 2)), (RawTurn((5,), 1),))
    assert (played.playing_s, played.run_s, played.num_tokens, played.num_turns) == (10.0, 11.5, 4, 3)


@pytest.mark.parametrize("turn", [Turn(restarts_context=True), Turn(num_inserted=1)])
def test_what_is_no_single_sequence_cannot_be_driven_raw(turn: Turn) -> None:
    with pytest.raises(BenchmarkFailed, match="no single sequence"):
        played_of([body(0, 1, turn)], 1.0)


def test_a_prompt_goes_on_from_what_the_engine_sampled_for_it() -> None:
    engine = Engine()
    raw(engine, (RawTurn((1, 2), 2), RawTurn((3,), 1)), at_once=4)
    assert engine.asked == [(1, 2), (1, 2, 7, 7, 3)]


def test_no_more_episodes_are_driven_at_once_than_the_platform_had() -> None:
    engine = Engine()
    raw(engine, *[(RawTurn((number,), 1),) for number in range(6)], at_once=2)
    assert (sorted(engine.asked), engine.most_at_once) == ([(number,) for number in range(6)], 2)


def test_an_engine_that_samples_another_number_fails() -> None:
    with pytest.raises(ExceptionGroup) as failed:
        raw(Engine(lacks=1), (RawTurn((1,), 3),), at_once=1)
    assert "2 tokens came back, expected 3" in str(failed.value.exceptions[0])


def test_the_ratio_is_that_of_tokens_per_second_and_the_whole_run_is_in_the_note() -> None:
    episodes = ((RawTurn((1,), 60), RawTurn((2,), 40)),)
    figure = figure_of(16, [Played(episodes, 2.0, 4.0), Played(episodes, 2.0, 4.0)], [1.0, 1.0])
    assert (figure.value, figure.met, figure.peer and figure.peer.ratio) == (50.0, False, 0.5)
    assert (
        figure.note == "2 turns an episode, 50 tokens a turn; from SubmitRun to the completed run 25 tokens/s"
    )
    assert figure_of(16, [Played(episodes, 1.0, 1.0)], [0.9]).met is True
