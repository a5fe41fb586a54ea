"""Episodes of many turns and many hours: their run decides, and no default is in their way."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import tool_call

from event_bus.topology import ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN
from rollout_sampler.app import _limits
from rollout_sampler.settings import RolloutSamplerSettings
from rollout_sampler.usecases.play_episode import PlayEpisode
from rollout_sampler.wire import task_from_wire
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.run_config import MAX_EPISODE_DEADLINE_S

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


async def test_an_episode_has_the_time_that_its_run_allows(bed: Testbed) -> None:
    limits = _limits(RolloutSamplerSettings())
    play = PlayEpisode(cast(Any, None), limits, now=lambda: NOON, new_nonce=str)
    for seconds in (600, 4 * 3600, MAX_EPISODE_DEADLINE_S):
        request = bed.request()
        request.deadline.FromDatetime(NOON + timedelta(seconds=seconds))
        assert play._time_left_s(task_from_wire(request)) == seconds
    for queue in (ROLLOUT_SAMPLER_TRAIN, ROLLOUT_SAMPLER_EVAL):
        assert queue.handler_timeout_s > MAX_EPISODE_DEADLINE_S + 600


async def test_two_hundred_turns_are_played_and_stored(bed: Testbed) -> None:
    bed.environments.tools = {"naps": lambda _: "."}
    many = taskset_pb2.SamplingConfig(max_turns=200, max_tokens_per_episode=100_000)

    def script(prompt: str, _: object) -> str:
        return "rested" if prompt.count("<tool_response>") == 199 else tool_call("naps")

    await bed.engine(script)
    await bed.sampler(episode_timeout_s=300.0)
    request = bed.request(sampling=many)
    request.deadline.FromDatetime(datetime.now(UTC) + timedelta(seconds=300))
    await bed.ask(request)
    (fact,) = await bed.outcomes(1, timeout_s=300)
    assert isinstance(fact, TrajectoryRecorded)
    assert (fact.num_turns, fact.stop_reason) == (200, trajectory_pb2.STOP_REASON_ANSWERED)
    assert len((await bed.body(fact)).turns) == 200


@pytest.mark.parametrize("limit_s", [3600.0, None])
async def test_a_tool_is_waited_for_as_long_as_it_says(bed: Testbed, limit_s: float | None) -> None:
    bed.environments.tools = {"builds": lambda _: "built"}
    bed.environments.tool_limits = {} if limit_s is None else {"builds": limit_s}
    bed.environments.tool_sleeps_s = 2.0

    def script(prompt: str, _: object) -> str:
        return "done" if "<tool_response>" in prompt else tool_call("builds")

    await bed.engine(script)
    await bed.sampler(tool_timeout_s=0.5)
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    if limit_s is None:
        assert isinstance(fact, EpisodeFailed)
        assert fact.kind == "timeout"
        return
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert [result.content for result in body.turns[0].tool_results] == ["built"]
    assert "timeout_s" not in body.tools_json  # no model sees it
