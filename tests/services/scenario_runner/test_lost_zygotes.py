"""Zygotes that are killed, hang or do not fork: their episodes fail with a type, and they are replaced."""

import asyncio
import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.services.scenario_runner.fleets import HOSTILE, TIMEOUTS, Fleet
from tests.support.waiting import until

from scenario_runner.adapters import zygotes
from scenario_runner.adapters.channel_environment import ChannelEnvironment
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.zygote_pool import ZygotePool
from scenario_runner.domain.environments import EnvironmentBroken, EnvironmentLost, UnknownLease


async def test_a_killed_zygote_loses_its_episodes_and_is_replaced(fleet: Fleet) -> None:
    opened = await fleet.open()
    zygote = await fleet.hosts.forked.zygote(HOSTILE)
    zygote.kill()
    await zygote.dead

    async def call_until_it_fails() -> None:
        # The kernel kills its children a moment after the zygote's own sockets are closed.
        while True:
            await fleet.call(opened, "raises")

    with pytest.raises(EnvironmentLost):
        await asyncio.wait_for(call_until_it_fails(), 30)
    assert (await fleet.grade(await fleet.open())).reward == 1.0


async def test_a_child_that_died_before_its_fork_is_noticed_is_a_typed_failure(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = await fleet.hosts.forked.zygote(HOSTILE)
    for child in ("1", "2"):  # it cannot make its folder, and ends; so does the one that is started after it
        (zygote._folder / child).mkdir()
    held: list[Any] = []
    assert zygote._client is not None
    deliver = zygote._client._on_message

    def deliver_both_in_one_turn(message: Any) -> None:
        held.append(message)
        if "exited" in message:
            for each in held:
                deliver(each)
            held.clear()

    with monkeypatch.context() as patch:
        patch.setattr(zygote._client, "_on_message", deliver_both_in_one_turn)
        with pytest.raises(EnvironmentBroken, match=r"each time: .* status 1"):
            await fleet.open()
    assert (len(zygote.pids), fleet.leases.num_alive) == (0, 0)
    assert await fleet.works()


async def test_a_zygote_that_hangs_holds_up_no_lease_and_is_replaced(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "END_TIMEOUT_S", 0.2)
    await asyncio.gather(fleet.open(), fleet.open())
    zygote = await fleet.hosts.forked.zygote(HOSTILE)
    assert zygote._process is not None
    os.kill(zygote._process.pid, signal.SIGSTOP)
    fleet.clock.now += timedelta(seconds=61)
    assert await asyncio.wait_for(fleet.leases.expire(), 60) == 2
    assert fleet.leases.num_alive == 0
    assert (await fleet.grade(await fleet.open())).reward == 1.0


async def test_a_zygote_that_does_not_fork_is_replaced(fleet: Fleet) -> None:
    hosts = ForkedHost(replace(fleet.hosts.forked._pool._options, fork_timeout_s=0.5), TIMEOUTS)
    fleet.hosts.forked, spare = hosts, fleet.hosts.forked
    zygote = await hosts.zygote(HOSTILE)
    assert zygote._process is not None
    os.kill(zygote._process.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentLost, match="did not fork"):
        await fleet.open()
    hosts._pool._options = spare._pool._options
    assert (await fleet.grade(await fleet.open())).reward == 1.0
    await spare.stop()


async def test_an_environment_that_cannot_be_closed_costs_neither_its_grade_nor_other_leases(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded, lapsed = await fleet.open(), await fleet.open()

    async def stuck(environment: ChannelEnvironment) -> None:
        await environment._channel.close()
        raise EnvironmentLost("it cannot be told to end")

    with monkeypatch.context() as patch:
        patch.setattr(ChannelEnvironment, "close", stuck)
        assert (await fleet.grade(graded)).reward == 1.0
        fleet.clock.now += timedelta(seconds=61)
        assert await fleet.leases.expire() == 1
    assert fleet.leases.num_alive == 0
    with pytest.raises(UnknownLease):
        await fleet.call(lapsed, "raises")
    assert await fleet.works()


async def test_a_dead_zygote_leaves_no_folder_and_no_look_goes_on(fleet: Fleet) -> None:
    """The newest one of its environment, which no episode asks for again, and one that was replaced."""
    spare = fleet.hosts.forked._pool
    pool = ZygotePool(spare._options, fleet.sources.find, look_every_s=0.05)
    fleet.hosts.forked._pool = pool
    folders = []
    for _ in range(2):
        zygote = await fleet.hosts.forked.zygote(HOSTILE)
        folders.append(zygote._folder)
        zygote.kill()
        await zygote.dead
    await until(lambda: pool.digests == [] and not any(map(Path.exists, folders)), "nothing is left")
    assert pool._retiring is not None
    await until(pool._retiring.done, "the look ends")
    assert await fleet.works()
    await spare.stop()
