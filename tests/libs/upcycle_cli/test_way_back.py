"""A command that is ended before its run: how to come back, and lines that a log keeps whole."""

import asyncio
import traceback
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
from upcycle.cli.doctor import platform_findings
from upcycle.cli.eval_flags import FollowFlags
from upcycle.cli.evaluate import evaluate
from upcycle.cli.main import run
from upcycle.cli.output import human
from upcycle.platform import PEERS, Platform
from upcycle.rpc import RemoteNotFound, remote_errors


@pytest.mark.parametrize("is_interrupted", [True, False])
async def test_an_evaluation_that_is_left_says_how_to_come_back(
    is_interrupted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = Planner()  # type: ignore[abstract]
    going = evaluation("run-1")
    going.state = ts.RUN_STATE_RUNNING
    planner.watched = [going]
    async with serving(planner) as where:
        for peer, address in where.peers.items():
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
        following = asyncio.create_task(_attached())
        if is_interrupted:  # what asyncio makes of Ctrl-C
            await asyncio.sleep(0.5)
            following.cancel()
        await asyncio.wait({following}, timeout=30)
    assert following.cancelled() is is_interrupted
    said = capsys.readouterr().err
    assert "the run may go on: upcycle eval --attach run-1 follows it, upcycle runs cancel run-1" in said
    assert is_interrupted or "was not over within 1 s" in str(following.exception())


async def _attached() -> int:
    from upcycle.cli.eval_flags import Report

    return await evaluate(follow=FollowFlags(attach="run-1"), report=Report(timeout_s=1.0))


def test_a_line_of_a_log_is_not_broken_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    human().print(f"run {'x' * 60} on {'y' * 60} (`upcycle why` if it waits)", markup=False)
    assert capsys.readouterr().err.count("\n") == 1


class _Registry(RegistryServiceServicer):
    def __init__(self, *models: str) -> None:
        self._models = models

    async def GetModel(self, request: Any, context: Any) -> service_pb2.GetModelResponse:
        if request.model not in self._models:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"model {request.model!r} is not in the registry")
        return service_pb2.GetModelResponse(model=registry_pb2.Model(model=request.model))

    async def ListModels(self, request: object, context: object) -> service_pb2.ListModelsResponse:
        found = [registry_pb2.Model(model=name, head_version=3) for name in self._models]
        return service_pb2.ListModelsResponse(models=found)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (("shop",), "shop v3"),
        (tuple("abcdefg"), "a v3, b v3, c v3, d v3, e v3, and 2 more"),
        ((), "none is known; `upcycle models create FOLDER --tiny` makes one"),
    ],
)
async def test_the_doctor_says_which_models_there_are_and_where_one_comes_from(
    models: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_RegistryServiceServicer_to_server, _Registry(*models))  # type: ignore[abstract]
    await server.start()
    try:
        for peer in PEERS:
            at = server.address if peer == "registry" else "127.0.0.1:1"
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", at)
        found = {one.what: one for one in await platform_findings()}
    finally:
        await server.stop()
    assert found["models"].detail.startswith(said)
    assert found["models"].verdict == ("ok" if models else "warn")


async def test_a_refusal_in_python_has_no_traceback_of_grpc_above_it() -> None:
    planner = Planner()  # type: ignore[abstract]
    async with serving(planner) as where, Platform(where) as platform:
        with pytest.raises(RemoteNotFound) as refused, remote_errors("read run-9"):
            await platform.tasksets.GetRun(GetRunRequest(run_id="run-9"), timeout=10)
    shown = "".join(traceback.format_exception(refused.value))
    assert shown.count("Traceback") == 1
    assert "AioRpcError" not in shown
    assert "no run run-9" in shown


TASKS = """
from upcycle import Environment, Taskset

env = Environment("shop")


@env.scenario("count")
async def count(item: str):
    answer = yield item
    yield 1.0 if answer == item else 0.0


tasks = Taskset("shop-tasks", [count(item="tea")])
"""


@pytest.mark.parametrize("command", [("eval", "tasks.py"), ("train", "--taskset", "tasks.py", "--model")])
async def test_a_model_that_is_not_there_leaves_no_taskset_behind(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    planner = Planner()  # type: ignore[abstract]
    registry = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    registry.add(add_RegistryServiceServicer_to_server, _Registry("shop"))  # type: ignore[abstract]
    await registry.start()
    async with serving(planner) as where:
        for peer, address in {**where.peers, "registry": registry.address}.items():
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
        assert await asyncio.to_thread(run, [*command, "shpo", "--detach"]) != 0
        assert "model 'shpo' is not in the registry" in capsys.readouterr().err
        assert planner.registered == []
        assert await asyncio.to_thread(run, [*command, "shop", "--detach"]) == 0
        assert capsys.readouterr().out == "run-new\n"
        assert planner.registered == ["shop-tasks"]
    await registry.stop()
