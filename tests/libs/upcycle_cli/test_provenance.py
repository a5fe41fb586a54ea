"""`upcycle models` and `upcycle trajectories list`: which evaluations trained, and what becomes head."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.registry.v1 import service_pb2 as registry_service
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.trajectory.v1 import service_pb2 as trajectory_service
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.cli.models import sources_words, watch_words
from upcycle.platform import PEERS

UPCYCLE = Path(sys.executable).parent / "upcycle"


class Services(RegistryServiceServicer, TrajectoryServiceServicer):
    """A model whose first checkpoint was trained on two evaluations, and two episodes of one of them."""

    async def ListCheckpoints(self, request: Any, context: Any) -> registry_service.ListCheckpointsResponse:
        base = registry.Checkpoint(
            checkpoint_id="ckpt-incident-v00000000", state=registry.CHECKPOINT_STATE_BASE
        )
        trained = registry.Checkpoint(
            checkpoint_id="ckpt-incident-v00000001",
            state=registry.CHECKPOINT_STATE_CANDIDATE,
            version=1,
            step=4,
            sources={"run-b": 1, "run-a": 38},
        )
        return registry_service.ListCheckpointsResponse(checkpoints=[base, trained])

    async def GetModel(self, request: Any, context: Any) -> registry_service.GetModelResponse:
        return registry_service.GetModelResponse(model=registry.Model(model=request.model, head_revision=7))

    async def SetHead(self, request: Any, context: Any) -> registry_service.SetHeadResponse:
        assert request.expected_revision == 7
        model = registry.Model(model=request.model, head_checkpoint_id=request.checkpoint_id)
        return registry_service.SetHeadResponse(model=model)

    async def ListHeadMoves(self, request: Any, context: Any) -> registry_service.ListHeadMovesResponse:
        return registry_service.ListHeadMovesResponse()

    async def GetHeadWatch(self, request: Any, context: Any) -> registry_service.GetHeadWatchResponse:
        return registry_service.GetHeadWatchResponse(
            head_version=1,
            predecessor_version=0,
            pairs=1250,
            pairs_wanted=1000,
            worse=3,
            better=40,
            waits_for="it played its pairs; more at noon",
        )

    async def ListTrajectories(
        self, request: Any, context: Any
    ) -> trajectory_service.ListTrajectoriesResponse:
        states = {"traj-1": trajectory.LEDGER_STATE_TRAINED, "traj-2": trajectory.LEDGER_STATE_EVALUATED}
        return trajectory_service.ListTrajectoriesResponse(
            trajectories=[
                trajectory.TrajectorySummary(
                    episode=EpisodeIdentity(trajectory_id=name),
                    ledger=trajectory.LedgerEntry(
                        state=state,
                        run_id="run-a",
                        step=3 if name == "traj-1" else 0,
                        trained_by_run="run-t" if name == "traj-1" else "",
                    ),
                )
                for name, state in states.items()
            ]
        )


@pytest.fixture
async def environment() -> AsyncIterator[dict[str, str]]:
    """In which the command finds the services."""
    services = Services()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_RegistryServiceServicer_to_server, services)
    server.add(add_TrajectoryServiceServicer_to_server, services)
    await server.start()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UPCYCLE_")}
    peers = {f"UPCYCLE_PEERS_{peer.upper()}": server.address for peer in PEERS}
    yield {**clean, **peers, "COLUMNS": "200"}
    await server.stop()


async def printed(environment: dict[str, str], *arguments: str) -> list[str]:
    """Lines of standard output, blanks between columns made single."""
    child = await asyncio.create_subprocess_exec(
        str(UPCYCLE), *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(100):
        out, _ = await child.communicate()
    assert child.returncode == 0
    return [" ".join(line.split()) for line in out.decode().splitlines()]


async def test_a_checkpoint_names_the_evaluations_that_trained_it(environment: dict[str, str]) -> None:
    _, base, trained = await printed(environment, "models", "checkpoints", "incident")
    assert "trained on" not in base
    assert trained.endswith("trained on run-a (38 groups), run-b (1 group)")
    _, line = await printed(environment, "models", "checkpoints", "incident", "--json")
    assert json.loads(line)["sources"] == {"run-a": "38", "run-b": "1"}


async def test_an_episode_of_an_evaluation_names_the_run_that_trained_on_it(
    environment: dict[str, str],
) -> None:
    _, first, second = await printed(environment, "trajectories", "list")
    assert first.endswith("trained(step 3 of run-t)")
    assert second.endswith("evaluated")


async def test_head_is_shown_with_what_its_watch_played(environment: dict[str, str]) -> None:
    *_, said = await printed(environment, "models", "head", "incident")
    assert said == (
        "watched: 1,250 of 1,000 pairs with v0, head worse in 3, better in 40; "
        "waits: it played its pairs; more at noon"
    )


def test_where_head_is_not_watched_the_reason_is_said() -> None:
    assert (
        watch_words(registry_service.GetHeadWatchResponse(waits_for="it is off")) == "not watched: it is off"
    )


def test_no_sources_are_a_dash() -> None:
    assert sources_words({}) == "–"


async def test_head_is_set_to_the_checkpoint_of_a_version_and_an_unknown_version_names_the_known_ones(
    environment: dict[str, str],
) -> None:
    set_to = ("models", "head", "incident", "--json", "--set")
    for name in ("v1", "ckpt-incident-v00000001"):
        (line,) = await printed(environment, *set_to, name)
        said = json.loads(line)
        assert said["head_checkpoint_id"] == "ckpt-incident-v00000001"
        assert (said["watch"]["pairs"], said["watch"]["worse"]) == ("1250", "3")
    refused = await asyncio.create_subprocess_exec(
        str(UPCYCLE), *set_to, "v9", env=environment, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(100):
        _, error = await refused.communicate()
    assert refused.returncode == 2
    assert "incident has no checkpoint of v9; it has v0, v1" in " ".join(error.decode().split())
