"""Planner and fleet as one process on SQLite, and apart on one Postgres where this machine has it."""

import pytest
from pydantic import SecretStr
from tests.postgres import BACKENDS
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.support import (
    arith,
    finished,
    play_to_grade,
    register,
    run_spec,
    sampling,
    submit,
)

from service_kit.groups import SqlSettings


async def evaluate(planner: Runner, fleet: Runner) -> dict[str, int]:
    planner.environments = fleet.environments
    await register(planner, arith())
    run = await submit(planner, run_spec(group_size=2))
    async with sampling(planner, lambda request: play_to_grade(planner, request)):
        done = await finished(planner, run.run_id)
    return dict(done.run.counts.by_state)


async def test_one_process_plans_and_hosts(runner: Runner) -> None:
    assert await evaluate(runner, runner) == {"evaluated": 6}


if "postgres" in BACKENDS:

    async def test_a_planner_and_two_fleets_on_one_database(
        start_runner: Start, request: pytest.FixtureRequest
    ) -> None:
        sql = SqlSettings(url=SecretStr(request.getfixturevalue("postgres_server").database()))
        planner = await start_runner(role="planner", sql=sql)
        fleets = [await start_runner(role="fleet", sql=sql) for _ in range(2)]
        assert fleets[0].address != fleets[1].address
        assert await evaluate(planner, fleets[1]) == {"evaluated": 6}
