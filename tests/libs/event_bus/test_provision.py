"""The topology is applied once or a hundred times, updated where possible, refused where not."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import eyes_on, fact_spec, topology
from tests.local_servers import NatsServer

from event_bus import UPCYCLE, BusSettings, ProvisionRefused
from event_bus import provision as provisioning
from event_bus.provision import provision
from event_bus.topology import DECISIONS, DLQ, EVENTS, TASKS, Keep
from local_stack.nats import NatsLogin
from upcycle.errors import Unavailable


async def test_applying_it_again_changes_nothing(nats_server: NatsFactory) -> None:
    server = nats_server()
    first = await provision(server.url)
    again = await provision(server.url)
    names = [spec.name for spec in UPCYCLE.streams] + [
        f"{spec.stream}/{spec.durable}" for spec in UPCYCLE.consumers
    ]
    assert (first.created, first.updated) == (names, [])
    assert (again.created, again.updated, again.unchanged) == ([], [], names)


async def test_a_difference_that_can_be_updated_is_updated_and_messages_stay(
    nats_server: NatsFactory,
) -> None:
    server = nats_server()
    await provision(server.url, topology=topology(fact_spec()))
    async with eyes_on(server) as eyes:
        await eyes.jetstream.publish("up.default.evt.run.finished.m", b"{}")
        changed = replace(
            topology(fact_spec(max_ack_pending=17)),
            streams=tuple(
                replace(spec, max_age_s=3600.0) if spec.name == EVENTS else spec for spec in UPCYCLE.streams
            ),
        )
        done = await provision(server.url, topology=changed)
        assert done.updated == [EVENTS, f"{EVENTS}/tested"]
        info = await eyes.jetstream.stream_info(EVENTS)
        assert (info.config.max_age, info.state.messages) == (3600, 1)
        config = (await eyes.jetstream.consumer_info(EVENTS, "tested")).config
        assert config is not None
        assert config.max_ack_pending == 17


async def test_a_difference_that_cannot_be_updated_is_refused_with_its_name(nats_server: NatsFactory) -> None:
    server = nats_server()
    await provision(server.url, topology=topology())
    changed = replace(
        topology(),
        streams=tuple(
            replace(spec, keep=Keep.UNTIL_ACKED) if spec.name == DLQ else spec for spec in UPCYCLE.streams
        ),
    )
    with pytest.raises(ProvisionRefused, match=r"DLQ exists .*retention: 'limits' -> 'workqueue'.*new name"):
        await provision(server.url, topology=changed)
    async with eyes_on(server) as eyes:
        assert (await eyes.jetstream.stream_info(DLQ)).config.retention == "limits"


async def test_two_durables_for_the_same_work_are_refused(nats_server: NatsFactory) -> None:
    from tests.libs.event_bus.support import command_spec

    server = nats_server()
    twice = topology(command_spec(), replace(command_spec(), durable="another"))
    with pytest.raises(ProvisionRefused, match="not unique"):
        await provision(server.url, topology=twice)


async def test_the_server_itself_gives_nothing_up(nats_server: NatsFactory) -> None:
    """A message that the server gives up stays in the work queue, undelivered and unseen."""
    server = nats_server()
    await provision(server.url)
    async with eyes_on(server) as eyes:
        for spec in UPCYCLE.consumers:
            config = (await eyes.jetstream.consumer_info(spec.stream, spec.durable)).config
            assert config is not None
            assert config.max_deliver == -1
        assert (await eyes.jetstream.stream_info(TASKS)).config.discard == "new"


async def test_no_server_is_said_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioning, "_CONNECT_TIMEOUT_S", 0.3)
    with pytest.raises(Unavailable, match=r"no NATS at nats://127\.0\.0\.1:1"):
        await provision("nats://127.0.0.1:1")


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "upcycle-provision"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def test_the_command_reports_what_it_did_and_logs_in(tmp_path: Path) -> None:
    with NatsServer(tmp_path, login=NatsLogin("upcycle", "se'cret \"1")) as server:
        login = {"UPCYCLE_BUS_USER": "upcycle", "UPCYCLE_BUS_PASSWORD": "se'cret \"1"}
        done = command(UPCYCLE_BUS_URL=server.url, **login)
        assert done.returncode == 0, done.stderr
        assert EVENTS in json.loads(done.stdout)["created"]
        again = command("--replicas", "1", UPCYCLE_BUS_URL=server.url, **login)
        assert json.loads(again.stdout)["created"] == []


def test_the_command_explains_itself_and_refuses_what_it_does_not_know() -> None:
    assert "UPCYCLE_BUS_URL" in command("--help").stdout
    wrong = command("--replcas", "3")
    assert wrong.returncode == 1
    assert "--replicas" in wrong.stderr
    misspelt = command(UPCYCLE_BUS_ULR="nats://127.0.0.1:1")
    assert misspelt.returncode == 2
    assert "UPCYCLE_BUS_URL" in misspelt.stderr


def test_settings_name_the_server() -> None:
    assert BusSettings(url="nats://a:1,nats://b:2").servers == ["nats://a:1", "nats://b:2"]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"max_msgs": 2}, r"EVENTS holds 3, and max_msgs -1 -> 2"),
        ({"max_bytes": 100}, r"EVENTS holds \d+, and max_bytes \d+ -> 100"),
        ({"max_per_subject": 2}, r"EVENTS holds 3, and max_msgs_per_subject -1 -> 2"),
        (
            {"max_age_s": 0.2, "duplicate_window_s": 0.1},
            r"EVENTS holds \d+, and max_age 2592000(\.0)? -> 0\.2",
        ),
    ],
)
async def test_a_bound_that_would_remove_what_a_stream_holds_is_refused_and_removes_nothing(
    nats_server: NatsFactory, bounds: dict[str, Any], said: str
) -> None:
    server = nats_server()
    await provision(server.url, topology=topology())
    smaller = replace(
        topology(),
        streams=tuple(replace(spec, **bounds) if spec.name == EVENTS else spec for spec in UPCYCLE.streams),
    )
    async with eyes_on(server) as eyes:
        for _ in range(3):
            await eyes.jetstream.publish("up.default.evt.run.finished.m", b"{}")
        await asyncio.sleep(0.25 if "max_age_s" in bounds else 0.0)  # until it is older than the new bound
        with pytest.raises(ProvisionRefused, match=said):
            await provision(server.url, topology=smaller)
        assert (await eyes.jetstream.stream_info(EVENTS)).state.messages == 3
        await eyes.jetstream.purge_stream(EVENTS)
        assert (await provision(server.url, topology=smaller)).updated == [EVENTS]


async def test_the_stream_of_facts_has_room_for_the_episodes_that_a_deployment_names(
    nats_server: NatsFactory,
) -> None:
    server = nats_server()
    await provision(BusSettings(url=server.url, episodes_kept=500))
    async with eyes_on(server) as eyes:
        assert (await eyes.jetstream.stream_info(EVENTS)).config.max_bytes == 2_250_000
        config = (await eyes.jetstream.stream_info(DECISIONS)).config
        assert (config.max_msgs, config.max_bytes) == (1_250, 1_800_000)
    assert {DECISIONS, EVENTS} <= set((await provision(server.url)).updated)
    async with eyes_on(server) as eyes:
        assert (await eyes.jetstream.stream_info(EVENTS)).config.max_bytes == 5_400_000_000
