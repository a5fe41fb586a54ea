"""Interactive passes claim the tasks of all stored inputs: before anything is computed, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.test_service import serving
from tests.services.grpo_trainer.interactive.trainers import inline, passing, sft_row, trainer_on

from episodes.identity import Split
from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from grpo_trainer.adapters.task_claims import PlannerClaims
from grpo_trainer.domain.errors import (
    HeldOutInput,
    InvalidInput,
    NothingAccumulated,
    PartialGroup,
    UnknownTrajectory,
)
from grpo_trainer.interactive.claiming import RememberedClaims
from grpo_trainer.interactive.inputs import StoredInput
from grpo_trainer.interactive.stored_trajectories import PlatformTrajectories
from upcycle import TrainingClient
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2 as taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import (
    TasksetServiceServicer,
    add_TasksetServiceServicer_to_server,
)
from upcycle.api.trajectory.v1 import service_pb2 as trajectory_service
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteRefused
from upcycle.task_rows import EnvironmentRef, Task
from upcycle.train import Sample, TokenRow, Trajectory

UNASSIGNED = Split.UNASSIGNED
WHO = f"interactive training of {MODEL}"


def stored(trainer: Any, *tasks: str, split: Split = UNASSIGNED) -> list[Any]:
    """Two trajectories of each task, the second one better."""
    return [
        StoredInput(trainer.library.add(f"traj-{task}-{reward:g}", reward, split=split, task=task))
        for task in tasks
        for reward in (0.0, 1.0)
    ]


async def test_every_kind_of_pass_claims_its_stored_tasks_once_each(world: World) -> None:
    async with trainer_on(world) as trainer:
        inputs = [*stored(trainer, "b", "a"), *stored(trainer, "sure", split=Split.TRAIN)]
        inputs += [inline(1, 0.0), inline(2, 1.0)]
        await trainer.forward_backward("f", inputs, group_size=2)
        assert trainer.claims.made == [(("a", "b", "sure"), WHO)]
        assert trainer.claims.held_runs == {one.run_id for one in trainer.library.known.values()} - {""}
        asked = passing(stored(trainer, "c"), group_size=2)
        await trainer.sessions.once(MODEL, "w", b"", lambda one: one.forward(asked))
        await trainer.forward_backward("x", stored(trainer, "d"), loss="cross_entropy")
        assert [digests for digests, _ in trainer.claims.made[1:]] == [("c",), ("d",)]
        await trainer.forward_backward("y", [inline(3, 0.0), inline(4, 1.0)])
        assert len(trainer.claims.made) == 3
        await trainer.forward_backward("z", stored(trainer, "e", "a", split=Split.TRAIN), group_size=2)
        await trainer.forward_backward("again", stored(trainer, "e", "a"), group_size=2)
        assert [digests for digests, _ in trainer.claims.made[3:]] == [("e",)]
        assert (await trainer.optim_step("o")).version == 1


@pytest.mark.parametrize("split", [Split.UNASSIGNED, Split.TRAIN])
async def test_a_batch_with_a_task_that_was_held_out_later_is_refused_before_computing(
    world: World, split: Split
) -> None:
    """split: what the stored body says, which was so when the episode was asked for."""
    async with trainer_on(world) as trainer:
        trainer.claims.held_out.add("b")
        with pytest.raises(HeldOutInput, match="task b is held out: it must never train"):
            await trainer.forward_backward("f", stored(trainer, "a", "b", split=split), group_size=2)
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("o")
        assert trainer.claims.made == []
        await trainer.forward_backward("g", stored(trainer, "a"), group_size=2)
        assert (await trainer.optim_step("p")).version == 1


@pytest.mark.parametrize("bring", [lambda: inline(1, 0.0), lambda: sft_row(1)], ids=["turns", "a row"])
async def test_what_a_caller_brings_of_a_held_out_task_is_refused_and_changes_nothing(
    world: World, bring: Callable[[], Any]
) -> None:
    async with trainer_on(world) as trainer:
        trainer.claims.held_out.add("secret")
        inputs = [replace(bring(), name="mine", task="known"), replace(bring(), name="theirs", task="secret")]
        with pytest.raises(HeldOutInput, match=r"^theirs: task secret is held out"):
            await trainer.forward_backward("f", inputs, loss="cross_entropy")
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("o")
        assert trainer.claims.made == []
        measured = await trainer.forward_backward("g", [inputs[0], bring()], loss="cross_entropy")
        assert trainer.claims.made == [(("known",), WHO)]
        assert measured.metrics["without_task"] == 1
        await trainer.forward_backward("h", [bring(), bring()], loss="cross_entropy")
        assert (await trainer.optim_step("p")).metrics["without_task"] == 3


async def test_a_client_names_the_task_of_what_it_brings(world: World) -> None:
    task, digest = Task(EnvironmentRef("sums", "sums.py"), "add", '{"a": 1}'), "b" * 64
    sample = Sample([1, 2], [3], [-1.0])
    async with trainer_on(world) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        await client.forward_backward([Trajectory([sample], 1.0, task=task), Trajectory([sample], 0.0)])
        assert trainer.claims.made == [((task.digest,), WHO)]
        trainer.claims.held_out.add(digest)
        row = TokenRow([1, 2], weights=[0.0, 1.0], task=digest)
        with pytest.raises(RemoteRefused, match="is held out: it must never train"):
            await client.forward_backward([row], "cross_entropy")
        with pytest.raises(RemoteRefused, match="input 0: task_digest 'sums' is not a sha256 in 64 hex"):
            await client.forward_backward([replace(row, task="sums")], "cross_entropy")
        turns = Trajectory([sample], 1.0, task=digest, name="turns")
        with pytest.raises(RemoteRefused, match="turns: task b"):
            await client.forward_backward([turns], "cross_entropy")


async def test_a_refused_batch_claims_no_task(world: World) -> None:
    async with trainer_on(world) as trainer:
        with pytest.raises(PartialGroup):
            await trainer.forward_backward("f", stored(trainer, "a", "b")[:3], group_size=2)
        mixed = [*stored(trainer, "a"), *stored(trainer, "secret", split=Split.HELD_OUT)]
        with pytest.raises(HeldOutInput, match="is of a held-out task"):
            await trainer.forward_backward("g", mixed, group_size=2)
        assert trainer.claims.made == []


async def test_a_claim_waits_for_an_unavailable_planner(world: World) -> None:
    async with trainer_on(world) as trainer:
        trainer.claims.absences = 2
        await trainer.forward_backward("f", stored(trainer, "a"))
        assert trainer.claims.made == [(("a",), WHO)]


async def test_the_caller_gets_the_planners_refusal(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        trainer.claims.held_out.add("b")
        names = [one.trajectory_id for one in stored(trainer, "b")]
        with pytest.raises(RemoteRefused, match="task b is held out") as refused:
            await TrainingClient(MODEL, runtime=where).forward_backward(names)
        assert (refused.value.reason, refused.value.code) == (
            "HELD_OUT_INPUT",
            grpc.StatusCode.INVALID_ARGUMENT,
        )


class Planner(TasksetServiceServicer):
    """Answers ClaimTasks with what the test says."""

    def __init__(self) -> None:
        self.answer: grpc.StatusCode | None = None
        self.asked: list[int] = []
        self.held: list[str] = []

    async def ClaimTasks(
        self, request: taskset_pb2.ClaimTasksRequest, context: Any
    ) -> taskset_pb2.ClaimTasksResponse:
        if self.answer is not None:
            await context.abort(self.answer, "because of the test")
        self.asked.append(len(request.task_digests))
        self.held += request.source_run_ids
        return taskset_pb2.ClaimTasksResponse(claimed=len(request.task_digests))


class Store(TrajectoryServiceServicer):
    """One stored trajectory of a split."""

    def __init__(self) -> None:
        self.split: common_pb2.Split.ValueType = common_pb2.SPLIT_TRAIN

    async def GetTrajectory(
        self, request: trajectory_service.GetTrajectoryRequest, context: Any
    ) -> trajectory_service.GetTrajectoryResponse:
        versions = [trajectory_pb2.TokenVersions(version=1, num_tokens=1)]
        turn = trajectory_pb2.Turn(
            new_prompt_ids=[1, 2], sampled_ids=[3], sampled_logprobs=[-1.0], versions=versions
        )
        body = trajectory_pb2.TrajectoryBody(
            episode=common_pb2.EpisodeIdentity(
                trajectory_id=request.trajectory_id, split=self.split, task_digest="d"
            ),
            temperature=1,
            turns=[turn],
        )
        return trajectory_service.GetTrajectoryResponse(body=body)


@pytest.fixture
async def services() -> AsyncIterator[tuple[Planner, Store, Peer]]:
    """A planner and a store, and a channel to both."""
    # Only the methods that the trainer calls; the generated bases answer UNIMPLEMENTED to the others.
    planner, store = Planner(), Store()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_TasksetServiceServicer_to_server, planner)
    server.add(add_TrajectoryServiceServicer_to_server, store)
    await server.start()
    peer = Peer("tasksets", f"127.0.0.1:{server.port}")
    await peer.start()
    yield planner, store, peer
    await peer.stop()
    await server.stop()


async def test_each_refusal_of_the_planner_becomes_its_error_class(
    services: tuple[Planner, Store, Peer],
) -> None:
    planner, _, peer = services
    claims = PlannerClaims(peer)
    await claims.claim([f"{n:064d}" for n in range(20_001)], "me")
    assert planner.asked == [10_000, 10_000, 1]
    await claims.claim([], "me")
    assert len(planner.asked) == 3
    await claims.claim([], "me", ["run-1"])
    assert (planner.asked[3:], planner.held) == ([0], ["run-1"])
    expected: list[tuple[grpc.StatusCode, type[Exception]]] = [
        (grpc.StatusCode.FAILED_PRECONDITION, HeldOutInput),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInput),
        (grpc.StatusCode.UNIMPLEMENTED, InvalidInput),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
    ]
    for code, error in expected:
        planner.answer = code
        with pytest.raises(error, match="because of the test") as raised:
            await claims.claim(["d"], "me")
        assert type(raised.value) is error


async def test_the_split_is_read_from_the_body(services: tuple[Planner, Store, Peer]) -> None:
    _, store, peer = services
    trajectories = PlatformTrajectories(peer, train_parse_errors=False)
    for wire, split in (
        (common_pb2.SPLIT_TRAIN, Split.TRAIN),
        (common_pb2.SPLIT_HELD_OUT, Split.HELD_OUT),
        (common_pb2.SPLIT_UNASSIGNED, Split.UNASSIGNED),
    ):
        store.split = wire
        assert (await trajectories.get("traj-1")).split is split
    store.split = common_pb2.SPLIT_UNSPECIFIED
    with pytest.raises(UnknownTrajectory, match="its split is 0"):
        await trajectories.get("traj-1")


async def test_a_run_is_held_again_after_an_hour_and_not_at_every_step() -> None:
    """The planner keeps it for a day after each claim, and the next checkpoint may be days away."""
    clock = [0.0]

    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    class Counted:
        async def claim(
            self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
        ) -> None:
            asked.append((tuple(digests), tuple(source_run_ids)))

    claims = RememberedClaims(Counted(), clock=lambda: clock[0])
    for moment in (0.0, 10.0, 3600.0, 3700.0):
        clock[0] = moment
        await claims.claim(["task"], "me", ["run-1"])
    assert asked == [(("task",), ("run-1",)), ((), ("run-1",))]
