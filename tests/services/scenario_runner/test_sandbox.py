"""What an episode process may use up: each limit is met by a process that tries."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.services.scenario_runner.fleets import HOSTILE, Fleet
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from scenario_runner.adapters import seccomp
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import EpisodeTimeout, EpisodeTimeouts

UNPRIVILEGED_UID = 65534
TIMEOUTS = EpisodeTimeouts(start_s=60, tool_s=60, grade_s=60)


@asynccontextmanager
async def fleet_with(limits: Limits, max_children: int = 8) -> AsyncIterator[Fleet]:
    options = ZygoteOptions(limits, max_children, start_timeout_s=30, fork_timeout_s=30)
    hosts = Hosts(ForkedHost(options, TIMEOUTS), TcpHost(TIMEOUTS))
    fleet = Fleet(hosts, capacity=8, sources=SourceStore(MemoryBlobStore()))
    try:
        yield fleet
    finally:
        await fleet.leases.close_all()
        await hosts.stop()


def processes_of(uid: int) -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                count += entry.stat().st_uid == uid
            except FileNotFoundError:
                continue
    return count


async def test_a_flood_of_forks_is_stopped_and_swept_away() -> None:
    # The kernel does not bound root's processes, so a root runner gives its episodes another user.
    uid = UNPRIVILEGED_UID if os.getuid() == 0 else 0
    before = processes_of(uid or os.getuid())
    async with fleet_with(Limits(extra_processes=16, uid=uid)) as fleet:
        opened = await fleet.open()
        outcome = await fleet.call(opened, "flood")
        assert "then BlockingIOError" in outcome.content
        assert 8 <= int(outcome.content.split()[0]) <= 24
        assert (await fleet.grade(opened)).reward == 1.0
        await until(lambda: processes_of(uid or os.getuid()) <= before + 5)
        assert await fleet.works()


async def test_an_episode_can_be_another_user_in_a_folder_of_its_own() -> None:
    uid = UNPRIVILEGED_UID if os.getuid() == 0 else 0
    async with fleet_with(Limits(uid=uid)) as fleet:
        expected = uid or os.getuid()
        assert (await fleet.call(await fleet.open(), "identity")).content == f"{expected} 0o700 {expected}"


async def test_files_memory_and_descriptors_are_bounded() -> None:
    limits = Limits(address_space_bytes=1 << 30, file_size_bytes=1 << 20, open_files=32)
    async with fleet_with(limits) as fleet:
        opened = await fleet.open()
        disk = await fleet.call(opened, "fill_disk", '{"megabytes": 5}')
        assert disk.is_error
        assert "File too large" in disk.content
        files = await fleet.call(opened, "open_files", '{"count": 100}')
        assert files.is_error
        assert "Too many open files" in files.content
        assert not (await fleet.call(opened, "open_files", '{"count": 10}')).is_error
        memory = await fleet.call(opened, "take_memory", '{"megabytes": 1024}')
        assert (memory.is_error, "MemoryError" in memory.content) == (True, True)  # for the policy to read
        assert (await fleet.call(opened, "take_memory", '{"megabytes": 16}')).content == "16 MB"
        assert (await fleet.grade(opened)).reward == 1.0


async def test_processor_time_is_bounded() -> None:
    async with fleet_with(Limits(cpu_s=1)) as fleet:
        with pytest.raises(EpisodeTimeout, match="processor time"):
            await fleet.open("spins_first")
        assert await fleet.works()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed_on_every_architecture(machine: str) -> None:
    program = seccomp.build_filter(machine)
    assert len(program) % 8 == 0
    instructions = [program[at : at + 8] for at in range(0, len(program), 8)]
    returns, jumps = 0x06, (0x15, 0x35, 0x45)
    for index, one in enumerate(instructions):
        if int.from_bytes(one[:2], "little") in jumps:
            assert index + 1 + max(one[2], one[3]) < len(instructions)
    assert int.from_bytes(instructions[-1][:2], "little") == returns
    assert seccomp.build_filter("x86_64") != seccomp.build_filter("aarch64")


async def test_many_environments_are_alive_at_once() -> None:
    async with fleet_with(Limits(), max_children=200) as fleet:
        zygote = await fleet.hosts.forked.zygote(HOSTILE)
        alive = []
        for _ in range(8):
            alive += await asyncio.gather(*(zygote.fork() for _ in range(16)))
        assert len(zygote.pids) == 128
        assert len({forked.child.pid for forked in alive}) == 128
        statuses = await asyncio.gather(*(zygote.end(forked) for forked in alive))
        assert set(statuses) <= {-9, 0}  # killed, or gone by itself when its channel was closed
        assert len(zygote.pids) == 0
