"""States of an environment in a stored trajectory."""

import grpc
import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import tool_call

from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded


def script(prompt: str, _: object) -> str:
    return "done" if "<tool_response>" in prompt else tool_call("write")


@pytest.mark.parametrize("declared", [True, False])
async def test_states_are_stored_with_what_they_followed(bed: Testbed, declared: bool) -> None:
    bed.environments.tools = {"write": lambda _: "written"}
    bed.environments.states = ['{"lines":0}', '{"lines":1}', '{"lines":2}'] if declared else []
    await bed.engine(script)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    result = body.turns[0].tool_results[0]
    stored = [body.first_state.value_json, result.state.value_json, body.last_state.value_json]
    assert stored == (['{"lines":0}', '{"lines":1}', '{"lines":2}'] if declared else ["", "", ""])
    assert [body.HasField("first_state"), result.HasField("state"), body.HasField("last_state")] == [
        declared
    ] * 3
    assert result.content == "written"


async def test_a_last_state_that_cannot_be_read_costs_nothing(bed: Testbed) -> None:
    bed.environments.states = ["{}"]
    bed.environments.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    await bed.engine(lambda prompt, _: "done")
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    note = (await bed.body(fact)).last_state.note
    assert note == "it could not be read: UNAVAILABLE: as the test wants"


async def test_a_last_state_takes_no_time_of_the_episode(bed: Testbed) -> None:
    bed.environments.states, bed.environments.last_state_sleeps_s = ["{}"], 60.0
    await bed.engine(lambda prompt, _: "done")
    await bed.sampler(episode_timeout_s=4.0, late_start_s=0.5)  # less than the state may take
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert (body.answer, body.last_state.note.split(":")[1]) == ("done", " DEADLINE_EXCEEDED")
