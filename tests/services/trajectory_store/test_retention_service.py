"""`upcycle retention` against a running store with a real object store, and peers that answer or do not."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL
from tests.services.trajectory_store.running_store import Store, running
from tests.support.waiting import until

from event_bus.provision import provision
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from retention import Reference
from retention.servicer import ReferenceServicer
from service_kit.clock import utc_now
from service_kit.groups import PeerSettings, S3Settings
from upcycle.api.retention.v1.service_pb2_grpc import add_ReferenceServiceServicer_to_server
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.cli.main import run
from upcycle.platform import PEERS
from upcycle.rpc import RemoteRefused, remote_errors

BOTH = ("bodies", "episodes")


class Peer:
    """A service that refers to runs."""

    def __init__(self) -> None:
        self.needed: list[Reference] = []
        self.released: set[str] = set()
        self.asked: dict[str, str] = {}
        self.ahead = timedelta(0)
        self.server = GrpcServer("127.0.0.1", 0, OPEN)
        self.server.add(
            add_ReferenceServiceServicer_to_server,
            ReferenceServicer(self._find, now=lambda: utc_now() + self.ahead),
        )

    async def _find(self, run_ids: Mapping[str, str], release: bool) -> Sequence[Reference]:
        self.asked |= run_ids
        found = [one for one in self.needed if one.run_id in run_ids]
        self.released |= set(run_ids) - {one.run_id for one in found} if release else set()
        return found


@pytest.fixture
async def registry() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.server.start()
    yield peer
    await peer.server.stop()


@pytest.fixture
async def planner() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.server.start()
    yield peer
    await peer.server.stop()


@pytest.fixture
async def store(
    nats_server: NatsFactory,
    s3_settings: S3Settings,
    tmp_path: Path,
    registry: Peer,
    planner: Peer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Store]:
    server = nats_server()
    await provision(server.url)
    peers = PeerSettings(tasksets=planner.server.address, registry=registry.server.address)
    async with running(server.url, s3_settings, tmp_path, peers=peers) as started:
        for name in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{name.upper()}", started.address)
        yield started


async def evaluated(store: Store, *numbers: int) -> None:
    """Of 2020, so that they are old on every clock."""
    for number in numbers:
        ref = await store.keep_body(number)
        recorded = events.recorded(number, purpose=EVAL, body=ref)
        recorded.recorded_at.FromDatetime(datetime(2020, 1, 1, tzinfo=UTC))
        requested, graded = (
            events.requested(number, purpose=EVAL),
            events.graded(number, purpose=EVAL, body=ref),
        )
        requested.requested_at.FromDatetime(datetime(2020, 1, 1, tzinfo=UTC))
        graded.graded_at.FromDatetime(datetime(2020, 1, 1, tzinfo=UTC))
        await store.publish(requested, recorded, graded)

    async def are_settled() -> bool:
        return (await store.ledger()).by_state.get("evaluated") == len(numbers)

    await until(are_settled)


async def retention(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert await asyncio.to_thread(run, ["retention", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_a_dry_run_then_the_removal_then_a_typed_error(
    store: Store, planner: Peer, registry: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluated(store, 0, 1, 2)
    assert [one["policy"] for one in await retention(capsys, *BOTH)] == ["kept for ever"] * 2
    (dry, rows) = await retention(capsys, *BOTH, "--older-than", "30d")
    assert (dry["what"], dry["would_remove"], dry["oldest"], dry["kept"]) == (
        "bodies",
        3,
        "2020-01-01T00:00:00Z",
        {},
    )
    assert dry["size_bytes"] > 100
    assert (rows["what"], rows["would_remove"]) == ("episodes", 0)
    assert planner.released == set()
    assert len(await store.blobs.list("default/trajectories/")) == 3
    registry.needed = [Reference("run-1", "evidence of a gate")]
    (kept,) = await retention(capsys, "bodies", "--older-than", "30d", "--apply")
    assert (kept["removed"], kept["kept"]) == (0, {"evidence of a gate": 3})
    assert planner.released == set(), "the planner is not asked about what another one needs"
    registry.needed = []
    removed = await retention(capsys, *BOTH, "--older-than", "30d", "--apply")
    assert [one["removed"] for one in removed] == [3, 3]
    assert planner.released == {"run-1"}
    assert registry.asked == {"run-1": events.MODEL}
    assert await store.blobs.list("default/trajectories/") == ()
    request = pb.GetTrajectoryRequest(trajectory_id=events.episode_id(0))
    with pytest.raises(RemoteRefused, match=r"TRAJECTORY_REMOVED.*older than 30 days"), remote_errors():
        await store.api.GetTrajectory(request)
    ledger = await store.ledger()
    assert (ledger.requested, ledger.settled, dict(ledger.by_state)) == (3, 3, {"evaluated": 3})


@pytest.mark.usefixtures("store")
async def test_where_no_age_is_set_the_command_names_what_sets_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await asyncio.to_thread(run, ["retention", *BOTH]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(
        "where no age is set, nothing is old: give --older-than, or set "
        "TRAJECTORY_STORE_RETENTION_BODIES_DAYS, TRAJECTORY_STORE_RETENTION_EPISODES_DAYS "
        "nothing was removed; add --apply"
    )


async def test_a_peer_that_does_not_answer_stops_it_and_is_named(
    store: Store, planner: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluated(store, 0)
    await planner.server.stop()
    assert await asyncio.to_thread(run, ["retention", "bodies", "--older-than", "1d", "--apply"]) == 4
    assert "nothing is removed before scenario_runner says which runs it needs" in capsys.readouterr().err
    assert len(await store.blobs.list("default/trajectories/")) == 1


@pytest.mark.parametrize("hours", [-2, 2])
async def test_nothing_goes_while_clocks_disagree(
    store: Store, planner: Peer, capsys: pytest.CaptureFixture[str], hours: int
) -> None:
    """By a clock that is a year ahead, everything is old."""
    await evaluated(store, 0)
    planner.ahead = timedelta(hours=hours)
    assert await asyncio.to_thread(run, ["retention", "bodies", "--older-than", "1d", "--apply"]) == 4
    said = capsys.readouterr().err
    assert "nothing is removed by age while clocks disagree" in said
    assert "UTC at scenario_runner" in said
    assert len(await store.blobs.list("default/trajectories/")) == 1


async def test_a_store_that_gave_a_fact_up_removes_nothing(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a step that trained on the episode."""
    await evaluated(store, 0)
    await store.publish(EpisodeFailed(kind="timeout"))

    async def is_refused() -> bool:
        return await asyncio.to_thread(run, ["retention", "bodies", "--older-than", "1d"]) == 4

    await until(is_refused)
    assert "trajectory_store has not read all events older than" in capsys.readouterr().err


async def test_a_peer_of_an_older_version_stops_it(
    store: Store, planner: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version 0.3.0 does not know the question."""
    await evaluated(store, 0)
    await planner.server.stop()
    port = int(planner.server.address.rpartition(":")[2])
    older = GrpcServer("127.0.0.1", port, OPEN)
    await older.start()
    try:
        assert await asyncio.to_thread(run, ["retention", "bodies", "--older-than", "1d", "--apply"]) == 4
    finally:
        await older.stop()
    assert "UNIMPLEMENTED" in capsys.readouterr().err
    assert len(await store.blobs.list("default/trajectories/")) == 1


@pytest.mark.parametrize("age", ["-3d", "0d", "30", "23h", "d", "1e3d", "thirty days", "٣d"])
def test_an_age_that_is_none_is_refused_by_name(age: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retention", f"--older-than={age}"]) == 2
    assert f"--older-than is {age!r}" in capsys.readouterr().err


def test_something_that_is_not_removed_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retention", "checkpoints"]) == 2
    assert "'checkpoints' is nothing that retention removes; it removes bodies" in capsys.readouterr().err
