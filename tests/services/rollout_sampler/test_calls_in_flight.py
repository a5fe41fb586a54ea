"""A call that is still running when the time of its episode ends: the policy's failure where it took most of
that time, as the environment measured it, and of no other part. With environments in real processes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import never, tool_call
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet, running_fleet

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from scenario_runner.domain.environments import EpisodeToPlay, PythonEnvironment
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.statuses import ENVIRONMENT_STATUSES
from service_kit.groups import PeerSettings
from upcycle.api.environment.v1.service_pb2_grpc import add_EnvironmentServiceServicer_to_server
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded

BLAME = PythonEnvironment("blame", str(ENVIRONMENTS / "blame.py"))
DEADLINE_S = 10
PAUSES = 3
"""So many episodes may be missing because this machine paused in them."""


@pytest.fixture
async def fleet(bed: Testbed) -> AsyncIterator[Fleet]:
    """Environments in real processes, which the samplers of the bed use."""
    async with running_fleet() as fleet:
        server = GrpcServer("127.0.0.1", 0, OPEN)
        servicer = EnvironmentServicer(fleet.leases, address=lambda: server.address)
        server.add(add_EnvironmentServiceServicer_to_server, servicer, ENVIRONMENT_STATUSES)
        await server.start()
        peers = PeerSettings(environments=server.address, registry=bed.registry.address)
        bed.settings = bed.settings.model_copy(update={"peers": peers})
        yield fleet
        await server.stop()


def request(bed: Testbed, number: int, *, late_s: float = 0.0) -> EpisodeRequested:
    """A planned episode of a run whose episode_deadline_s is DEADLINE_S, sent `late_s` ago."""
    message = bed.request(number)
    sent_at = datetime.now(UTC) - timedelta(seconds=late_s)
    message.requested_at.FromDatetime(sent_at)
    message.deadline.FromDatetime(sent_at + timedelta(seconds=DEADLINE_S))
    return message


async def played(bed: Testbed, fleet: Fleet, number: int = 0, **changes: float) -> Any:
    message = request(bed, number, **changes)
    name = message.episode.episode_id
    ends_at = datetime.now(UTC) + timedelta(seconds=60)
    fleet.episodes.rows[name] = EpisodeToPlay(name, BLAME, "parses", "{}", ends_at)
    await bed.ask(message)
    return (await bed.outcomes(number + 1))[number]


def naps_after(engine_s: float) -> Callable[[str, Any], Awaitable[str]]:
    """An engine that takes its time for the first turn, which calls a tool for 29 s."""

    async def script(prompt: str, body: Any) -> str:
        if "<tool_response>" in prompt:
            return await never(prompt, body)
        await asyncio.sleep(engine_s)
        return tool_call("naps", seconds=29)

    return script


@pytest.mark.parametrize("late_s", [0.0, 100.0])
async def test_a_policy_that_hangs_in_its_first_call_earns_0(
    bed: Testbed, fleet: Fleet, late_s: float
) -> None:
    await bed.engine(naps_after(0))
    await bed.sampler(late_start_s=20.0)
    for number in range(PAUSES):
        fact = await played(bed, fleet, number, late_s=late_s)
        if isinstance(fact, TrajectoryRecorded):
            break
    assert isinstance(fact, TrajectoryRecorded)
    assert fact.failure.kind == "tool_timeout"
    assert "tool naps took longer than" in fact.failure.detail
    assert len((await bed.body(fact)).turns) == 1


async def test_a_call_that_the_deadline_cuts_off_after_a_slow_engine_is_missing(
    bed: Testbed, fleet: Fleet
) -> None:
    await bed.engine(naps_after(DEADLINE_S - 2))
    await bed.sampler(turn_timeout_s=30)
    fact = await played(bed, fleet)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "timeout"


async def test_a_call_to_a_runner_that_is_frozen_is_missing(bed: Testbed) -> None:
    bed.environments.tools, bed.environments.is_frozen = {"naps": lambda _: "rested"}, True
    await bed.engine(naps_after(0))
    await bed.sampler()
    await bed.ask(request(bed, 0))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "timeout"


async def test_a_late_start_gets_no_more_time_than_the_planner_waits(bed: Testbed) -> None:
    await bed.engine(never)
    await bed.sampler(late_start_s=20.0, turn_timeout_s=30)
    await bed.ask(request(bed, 0, late_s=100.0))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert f"after {DEADLINE_S} s" in fact.detail
