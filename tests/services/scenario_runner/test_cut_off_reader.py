"""Two planners, of which the one that reads the facts is cut off from NATS, and not from the database."""

from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from tests.chaos.proxy import Link, LinkMode
from tests.local_servers import NatsServer
from tests.postgres import BACKENDS, PostgresServer
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

from service_kit.groups import BusSettings, SqlSettings
from upcycle.api.taskset.v1 import taskset_pb2


@pytest.mark.skipif("postgres" not in BACKENDS, reason="no Postgres programs on this machine")
@pytest.mark.parametrize("mode", [LinkMode.CUT, pytest.param(LinkMode.SILENT, marks=pytest.mark.study)])
async def test_another_planner_reads_while_the_one_that_read_is_cut_off_from_the_bus(
    mode: LinkMode, start_runner: Start, nats: NatsServer, postgres_server: PostgresServer
) -> None:
    server = urlsplit(nats.url)
    link = Link("planner", "nats", [(str(server.hostname), int(server.port or 0))])
    await link.serve()
    sql = SqlSettings(url=SecretStr(postgres_server.database()))
    try:
        reading: Runner = await start_runner(bus=BusSettings(url=f"nats://{link.address}"), sql=sql)
        other: Runner = await start_runner(sql=sql)
        await register(reading, arith())
        run = await submit(reading, run_spec(group_size=2))
        link.set(mode)
        async with sampling(other, lambda request: play_to_grade(other, request)):
            done = await finished(other, run.run_id, timeout_s=60)
        assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
        assert dict(done.run.counts.by_state) == {"evaluated": 6}
    finally:
        link.set(LinkMode.OPEN)
        await link.close()
