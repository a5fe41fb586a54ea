"""Interactive sessions as an operator sees them: while they train, after a restart, and when their state
is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import InteractiveTrainer, inline, trainer_on
from tests.services.grpo_trainer.learners import options, thread_of

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from grpo_trainer.handlers import stored_facts
from grpo_trainer.interactive.inputs import TrainingInput
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.servicer import STATUS_OF, TrainingServicer
from identities import objects
from identities.entities import interactive_run_id
from upcycle.api.training.v1 import service_pb2 as service
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import (
    TrainingServiceStub,
    add_TrainingServiceServicer_to_server,
)
from upcycle.rpc import connect

if TYPE_CHECKING:
    from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceAsyncStub

RUN = interactive_run_id(MODEL)


@asynccontextmanager
async def asked(trainer: InteractiveTrainer) -> AsyncIterator[TrainingServiceAsyncStub]:
    """The service of a trainer whose components were started; it has no runs."""
    with thread_of(options(1)) as thread:
        servicer = TrainingServicer(
            RunSessions(trainer.world.deps(thread), stored_facts(trainer.world.stream)), trainer.sessions
        )
        server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
        server.add(add_TrainingServiceServicer_to_server, servicer, STATUS_OF)
        await trainer.sessions.start()
        await server.start()
        try:
            async with connect(server.address) as channel:
                yield TrainingServiceStub(channel)
        finally:
            await server.stop()


async def one_step(trainer: InteractiveTrainer, number: int) -> None:
    batch: list[TrainingInput] = [inline(seed, float(seed % 2)) for seed in range(4)]
    await trainer.forward_backward(f"f{number}", batch, group_size=4)
    await trainer.optim_step(f"o{number}")


async def listed(stub: TrainingServiceAsyncStub) -> training.TrainingSession:
    """The only session there is, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            found = (await stub.ListSessions(service.ListSessionsRequest())).sessions
            if found:
                (session,) = found
                return session
            await asyncio.sleep(0.02)


async def step_seen(watch: grpc.aio.UnaryStreamCall[Any, service.WatchSessionResponse]) -> int:
    """The step of the next reply."""
    reply = await watch.read()
    assert isinstance(reply, service.WatchSessionResponse)
    return reply.session.step


async def test_a_model_in_interactive_training_is_listed_as_a_session(world: World) -> None:
    async with trainer_on(world) as trainer, asked(trainer) as stub:
        assert not (await stub.ListSessions(service.ListSessionsRequest())).sessions
        for number in (1, 2):
            await one_step(trainer, number)
        session = await listed(stub)
        assert (session.run_id, session.model, session.kind) == (
            RUN,
            MODEL,
            training.SESSION_KIND_INTERACTIVE,
        )
        assert (session.step, session.version, session.target_steps) == (2, 2, 0)
        assert session.state == training.SESSION_STATE_WAITING
        assert {"loss", "grad_norm", "learning_rate"} <= set(session.last_metrics.values)
        got = await stub.GetSession(service.GetSessionRequest(run_id=RUN, num_steps=1))
        assert [(point.step, point.version) for point in got.steps] == [(2, 2)]
        assert got.session.last_metrics == got.steps[0].metrics
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetSession(service.GetSessionRequest(run_id="interactive-unknown"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_session_is_listed_after_a_restart_and_continued(world: World) -> None:
    async with trainer_on(world) as trainer:
        await one_step(trainer, 1)
        registry = trainer.registry
    async with trainer_on(world, registry=registry) as trainer, asked(trainer) as stub:
        session = await listed(stub)
        assert (session.run_id, session.step, session.version) == (RUN, 1, 1)
        assert session.last_metrics.values["grad_norm"] > 0
        await one_step(trainer, 2)
        got = await stub.GetSession(service.GetSessionRequest(run_id=RUN, num_steps=8))
        assert [point.step for point in got.steps] == [1, 2]


async def test_watch_session_streams_each_interactive_step(world: World) -> None:
    async with trainer_on(world) as trainer, asked(trainer) as stub:
        await one_step(trainer, 1)
        watch = stub.WatchSession(service.WatchSessionRequest(run_id=RUN))
        seen = [await step_seen(watch)]
        stepping = asyncio.create_task(one_step(trainer, 2))
        async with asyncio.timeout(60):
            while seen[-1] < 2:
                seen.append(await step_seen(watch))
        watch.cancel()
        await stepping
    assert seen == sorted(seen)
    assert seen[0] == 1


async def test_a_session_with_an_unreadable_state_is_listed_as_failed(world: World) -> None:
    async with trainer_on(world) as trainer:
        await one_step(trainer, 1)
    world.store.objects[f"{objects.interactive_session(MODEL)}/step-00000001/state.json"] = b"{}"
    async with trainer_on(world) as trainer, asked(trainer) as stub:
        session = await listed(stub)
        assert (session.run_id, session.state) == (RUN, training.SESSION_STATE_FAILED)
        assert "state that this trainer reads" in session.failure
