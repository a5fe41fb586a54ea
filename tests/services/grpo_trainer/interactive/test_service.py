"""TrainingService and TrainingClient over a real channel: statuses, shapes, repeated requests, absences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import InteractiveTrainer, inline, trainer_on
from tests.support.waiting import until

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.servicer import STATUS_OF, TrainingServicer
from identities import objects
from upcycle import TrainingClient, UpcycleError
from upcycle.api.training.v1 import interactive_pb2 as pb
from upcycle.api.training.v1 import service_pb2 as service
from upcycle.api.training.v1.service_pb2_grpc import (
    TrainingServiceStub,
    add_TrainingServiceServicer_to_server,
)
from upcycle.platform import PEERS, Addresses
from upcycle.results import Run
from upcycle.rpc import RemoteConflict, RemoteNotFound, RemoteRefused, connect
from upcycle.train import DatumTensors, Lora, Sample, TokenRow, Trajectory, whole_groups
from upcycle.train.custom import CustomLossInvalid
from upcycle.train.inputs import InputInvalid

LOCAL = "127.0.0.1"


@asynccontextmanager
async def serving(trainer: InteractiveTrainer, port: int = 0) -> AsyncIterator[Addresses]:
    """The service of `trainer`."""
    sessions = RunSessions.__new__(RunSessions)  # nothing here asks for the runs
    server = GrpcServer(LOCAL, port, OPEN).add(
        add_TrainingServiceServicer_to_server, TrainingServicer(sessions, trainer.sessions), STATUS_OF
    )
    await server.start()
    try:
        yield Addresses(dict.fromkeys(PEERS, f"{LOCAL}:{server.port}"), "the test")
    finally:
        await server.stop()


def trajectories(count: int = 4) -> list[Trajectory]:
    """As the SDK takes them."""
    made = []
    for seed in range(count):
        one = inline(seed, float(seed % 2))
        samples = [Sample(s.prompt_ids, s.output_ids, s.output_logprobs) for s in one.samples]
        made.append(Trajectory(samples, float(seed % 2)))
    return made


async def test_a_client_takes_a_step_and_reads_its_result(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        assert {"importance_sampling", "ppo", "cispo", "dro", "cross_entropy"} <= set(
            await client.available_losses()
        )
        passed = await client.forward_backward(trajectories(), "ppo", {"clip_low": 0.1}, group_size=4)
        assert passed.num_datums == 4
        assert passed.metrics["reward_mean"] == 0.5
        done = await client.optim_step(1e-3, weight_decay=0.1)
        assert (done.step, done.version, done.is_head) == (1, 1, True)
        assert done.sampler_path == f"default/policies/{MODEL}/v00000001/manifest.json"
        assert done.state_path == f"{objects.interactive_session(MODEL)}/step-00000001/state.json"
        both = await client.step(trajectories(), learning_rate=1e-3, group_size=2, num_substeps=2)
        assert (both.step, both.num_datums) == (2, 4)
        assert both.metrics["learning_rate"] == pytest.approx(1e-3)
        assert {"grad_norm", "loss", "mismatch_kl", "tokens"} <= set(both.metrics)


async def test_a_forward_pass_has_arrays_of_equal_length(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        passed = await TrainingClient(MODEL, runtime=where).forward(
            trajectories(), group_size=2, reward_scale=2.0
        )
    assert [(d.input_index, d.group_index, d.reward, d.advantage) for d in passed.data] == [
        (0, 0, 0.0, -1.0),
        (1, 0, 2.0, 1.0),
        (2, 1, 0.0, -1.0),
        (3, 1, 2.0, 1.0),
    ]
    for datum, one in zip(passed.data, trajectories(), strict=True):
        last = one.samples[-1]
        assert list(datum.token_ids) == [*last.prompt_token_ids, *last.output_token_ids][1:]
        size = len(datum.token_ids)
        assert len(datum.logprobs) == len(datum.sampling_logprobs) == len(datum.mask) == size
        sampled = [at for at, value in enumerate(datum.mask) if value]
        expected = [value for sample in one.samples for value in sample.output_logprobs]
        assert [datum.sampling_logprobs[at] for at in sampled] == pytest.approx(expected)
        assert all(datum.logprobs[at] < 0 for at in sampled)
        assert sum(datum.mask) == len(expected)


async def test_refusals_say_what_to_change(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        with pytest.raises(RemoteRefused, match="known: cispo, cross_entropy") as refused:
            await client.forward_backward(trajectories(), "grpo")
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(RemoteRefused, match="not whole groups of 3") as refused:
            await client.step(trajectories(), learning_rate=1e-3, group_size=3)
        assert refused.value.reason == "PARTIAL_GROUP"
        with pytest.raises(RemoteRefused, match="learning_rate is 0"):
            await client.optim_step(0.0)
        with pytest.raises(RemoteRefused, match="no gradient is accumulated") as refused:
            await client.optim_step(1e-3)
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(RemoteNotFound, match="'unknown' is not registered"):
            await TrainingClient("unknown", runtime=where).available_losses()
        with pytest.raises(RemoteRefused, match="without kl_coefficient is not read"):
            await client.forward_backward(trajectories(), "ppo", {"kl_bias_correction": 1})
        with pytest.raises(RemoteRefused, match="needs; cross_entropy does not"):
            await client.forward_backward([TokenRow([1, 2, 3], weights=[0, 1, 1], reward=1.0)])
        with pytest.raises(RemoteRefused, match="learning_rate \\* weight_decay is 1e\\+27, it must be <= 1"):
            await client.optim_step(1e-3, weight_decay=1e30)
        with pytest.raises(RemoteRefused, match="rank"):
            await TrainingClient(MODEL, runtime=where, lora=Lora(-1)).forward(trajectories())
        with pytest.raises(UpcycleError, match="unknown argument 'lr'"):
            await client.optim_step(1e-3, lr=1.0)  # type: ignore[call-arg]


async def test_the_client_refuses_an_invalid_custom_loss(world: World) -> None:
    def detached(data: list[DatumTensors], logprobs: list[Any]) -> Any:
        return logprobs[0].detach().sum(), {}

    def nothing(data: list[DatumTensors], logprobs: list[Any]) -> Any:
        return logprobs[0].sum()

    def infinite(data: list[DatumTensors], logprobs: list[Any]) -> Any:
        return (logprobs[0] * float("inf")).sum(), {}

    async with trainer_on(world) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        for loss, says in ((detached, "detaching"), (nothing, "metrics"), (infinite, "nan|inf")):
            with pytest.raises(CustomLossInvalid, match=says):
                await client.forward_backward_custom(trajectories(), loss, group_size=4)
        passed = await client.forward(trajectories())
        with pytest.raises(RemoteRefused, match="weights came for it"):
            await client.backward(passed.forward_id, [[0.0]] * 4)


async def test_a_repeated_request_id_is_executed_once(world: World) -> None:
    async with (
        trainer_on(world) as trainer,
        serving(trainer) as where,
        connect(where.peers["training"]) as channel,
    ):
        stub = TrainingServiceStub(channel)
        batch = pb.Batch(inputs=[pb.TrainingInput(row=pb.TokenRow(token_ids=[1, 2, 3], weights=[0, 1, 1]))])
        request = service.StepRequest(
            model=MODEL,
            request_id="once",
            batch=batch,
            loss=pb.Loss(name="cross_entropy"),
            adam=pb.AdamParameters(learning_rate=1e-3),
        )
        answers = await asyncio.gather(*(stub.Step(request) for _ in range(3)))
        assert {answer.SerializeToString(deterministic=True) for answer in answers} == {
            answers[0].SerializeToString(deterministic=True)
        }
        request.num_substeps = 2
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Step(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    async with (
        trainer_on(world) as trainer,
        serving(trainer) as where,
        connect(where.peers["training"]) as channel,
    ):
        request.num_substeps = 0
        again = await TrainingServiceStub(channel).Step(request)
        assert again.result.checkpoint_id == answers[0].result.checkpoint_id
        assert again.result.version == 1


async def test_a_request_runs_to_its_end_after_its_caller_disconnected(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        leaving = asyncio.create_task(client.step(trajectories(), learning_rate=1e-3))
        await until(lambda: trainer.sessions.is_working)
        leaving.cancel()
        await until(lambda: world.heads[MODEL].version == 1, timeout_s=30)


async def test_the_client_waits_for_an_unavailable_trainer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "upcycle.retrying")
    async with trainer_on(world) as trainer:
        async with serving(trainer) as where:
            port = int(where.peers["training"].rpartition(":")[2])
        client = TrainingClient(MODEL, runtime=where, timeout_s=30.0)
        asked = asyncio.create_task(client.step(trajectories(), learning_rate=1e-3))
        await until(lambda: "waiting" in caplog.messages)
        assert not asked.done()
        async with serving(trainer, port):
            assert (await asked).version == 1


def test_groups_with_an_episode_that_failed_are_left_out() -> None:
    runs = [Run("t", 1.0, True, f"traj-{n}", f"e-{n}", failure="x" if n == 2 else "") for n in range(6)]
    assert [run.trace_id for run in whole_groups(runs, 2)] == ["traj-0", "traj-1", "traj-4", "traj-5"]
    with pytest.raises(InputInvalid, match="not whole groups of 4"):
        whole_groups(runs, 4)


async def test_the_client_refuses_a_run_without_a_reward() -> None:
    where = Addresses(dict.fromkeys(PEERS, f"{LOCAL}:1"), "nowhere")
    failed = Run("t", 0.0, False, "traj-1", "e-1", failure="timeout")
    with pytest.raises(InputInvalid, match=r"no reward: timeout.*whole_groups"):
        await TrainingClient(MODEL, runtime=where).step([failed], learning_rate=1e-3)
    with pytest.raises(InputInvalid, match="int cannot be trained on"):
        await TrainingClient(MODEL, runtime=where).step([3], learning_rate=1e-3)  # type: ignore[list-item]


async def test_a_client_chooses_what_a_pass_returns_and_what_a_step_saves(world: World) -> None:
    async with trainer_on(world) as trainer:
        registry = trainer.registry
        async with serving(trainer) as where:
            client = TrainingClient(MODEL, runtime=where)
            passed = await client.forward_backward(
                trajectories(), group_size=4, normalize="sum", logprobs=True
            )
            forward = await client.forward(trajectories(), group_size=4)
            assert [list(one) for one in passed.logprobs] == [
                pytest.approx(list(datum.logprobs), abs=1e-5) for datum in forward.data
            ]
            assert passed.metrics["loss_sum"] == pytest.approx(
                passed.metrics["loss"] * passed.metrics["tokens"]
            )
            assert (await client.forward_backward(trajectories(), group_size=4)).logprobs == []
            none = await client.optim_step(1e-3, persist="none")
            weights = await client.step(trajectories(), learning_rate=1e-3, group_size=4, persist="weights")
            with pytest.raises(
                UpcycleError, match="persist is 'all'; it is one of checkpoint, weights, none"
            ):
                await client.optim_step(1e-3, persist="all")  # type: ignore[arg-type]
            with pytest.raises(UpcycleError, match="unknown argument 'lr'; a pass has reward_scale"):
                await client.forward_backward(trajectories(), lr=1)  # type: ignore[call-arg]
    assert (none.step, none.version, none.persist, none.checkpoint_id) == (1, 0, "none", "")
    assert (weights.step, weights.version, weights.persist, weights.is_head) == (2, 1, "weights", False)
    async with trainer_on(world, registry=registry) as trainer, serving(trainer) as where:
        client = TrainingClient(MODEL, runtime=where)
        with pytest.raises(RemoteConflict, match="steps 1 to 2 had persist=weights or none") as lost:
            await client.step(trajectories(), learning_rate=1e-3, group_size=4)
        assert (lost.value.reason, lost.value.code) == ("LOST_STEPS", grpc.StatusCode.ABORTED)
        done = await client.step(trajectories(), learning_rate=1e-3, group_size=4)
    assert (done.step, done.version, done.persist, done.is_head) == (1, 2, "checkpoint", True)


async def test_what_the_wire_does_not_know_is_refused_by_name(world: World) -> None:
    async with (
        trainer_on(world) as trainer,
        serving(trainer) as where,
        connect(where.peers["training"]) as at,
    ):
        stub = TrainingServiceStub(at)
        loss = pb.Loss(normalize=7)  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError, match="normalize is 7; NORMALIZE_TOKENS"):
            await stub.ForwardBackward(service.ForwardBackwardRequest(model=MODEL, request_id="a", loss=loss))
        with pytest.raises(grpc.aio.AioRpcError, match="persist is 9; PERSIST_CHECKPOINT"):
            await stub.OptimStep(
                service.OptimStepRequest(model=MODEL, request_id="b", persist=9)  # type: ignore[arg-type]
            )
