"""MCP servers of an environment on the fleet, in its sandbox."""

import pytest
from tests.services.scenario_runner.environments.attached import env
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet

from episodes import EpisodeFailure
from scenario_runner.domain.environments import EpisodeFault, PythonEnvironment
from upcycle.environment.mcp_program import MAX_RESULT_BYTES

ATTACHED = PythonEnvironment(env.name, str(ENVIRONMENTS / "attached.py"))


async def test_a_server_answers_refuses_what_is_too_large_and_is_missed_where_it_died(fleet: Fleet) -> None:
    playing = await fleet.open("play", source=ATTACHED)
    assert (await fleet.call(playing, "forecast", "{}")).content == "rain"
    large = await fleet.call(playing, "large", '{"num_bytes": 50000000}')
    assert large.is_error
    assert f"its result has 50000083 bytes, limit {MAX_RESULT_BYTES}" in large.content
    with pytest.raises(EpisodeFault, match="MCP server 'odd' is gone") as died:
        await fleet.call(playing, "die", "{}")
    assert died.value.failure_kind == EpisodeFailure.EXTERNAL_FAILURE
