"""Walls between users stop no episode that runs as another one."""

import os
from pathlib import Path

from tests.attacks.strangers import STRANGER, as_stranger
from tests.services.scenario_runner.fleets import TIMEOUTS, Fleet

from blob_store import MemoryBlobStore
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import PythonEnvironment
from service_kit.main import PRIVATE_UMASK
from upcycle.environment.source_files import read_source

LATE = Path(__file__).parent / "environments" / "late.py"


@as_stranger
async def test_an_episode_of_another_user_reads_a_deployed_source_of_a_service_with_a_private_umask() -> None:
    sources = SourceStore(MemoryBlobStore())
    options = ZygoteOptions(Limits(uid=STRANGER), 8, start_timeout_s=30, fork_timeout_s=30)
    hosts = Hosts(ForkedHost(options, TIMEOUTS, find_source=sources.find), TcpHost(TIMEOUTS))
    fleet = Fleet(hosts, capacity=2, sources=sources)
    files = read_source(str(LATE))
    await sources.keep(files)
    before = os.umask(PRIVATE_UMASK)
    try:
        opened = await fleet.open("play", source=PythonEnvironment("late", f"deployed:{files.digest}"))
    finally:
        os.umask(before)
        await fleet.leases.close_all()
        await hosts.stop()

    assert "looks for secrets" in str(opened)
