"""`upcycle eval TASKS` without a model, and with a URL as the model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle_cli.planner import NOWHERE
from tests.support.model_servers import KEY, MODEL, Said, serving

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.registry.v1.registry_pb2 import Model
from upcycle.api.registry.v1.service_pb2 import ListModelsResponse
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.cli.default_model import default_model
from upcycle.cli.eval_flags import UnclearEvaluation
from upcycle.external.asking import named_agent
from upcycle.platform import PEERS
from upcycle.playing.errors import PlayRefused

Registered = Callable[..., None]


class Registry(RegistryServiceServicer):
    """Has these models."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    async def ListModels(self, request: Any, context: Any) -> ListModelsResponse:
        return ListModelsResponse(models=[Model(model=name) for name in self.names])


@pytest.fixture
async def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registered]:
    """Says which models a platform has that is found from this folder."""
    monkeypatch.chdir(tmp_path)
    registry = Registry()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1).add(
        add_RegistryServiceServicer_to_server, registry
    )
    await server.start()

    def have(*names: str) -> None:
        registry.names = names
        for peer in PEERS:
            address = server.address if peer == "registry" else NOWHERE
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)

    yield have
    await server.stop()


async def test_the_only_model_of_a_platform_plays_and_is_named(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    registered("shop")
    assert await default_model() == "shop"
    assert "shop plays: the only model of the platform" in capsys.readouterr().err


async def test_of_several_models_one_must_be_named(registered: Registered) -> None:
    registered("shop", "arith-rl", "c", "d", "e", "f", "g")
    with pytest.raises(
        UnclearEvaluation, match=r"has 7 models; name one: shop, arith-rl, c, d, e and 2 more"
    ):
        await default_model()
    registered()
    with pytest.raises(UnclearEvaluation, match="the platform has none; upcycle models import"):
        await default_model()


async def test_the_projects_model_comes_first(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    registered("shop", "other")
    Path("upcycle.toml").write_text('[up]\nmodel = "shop"\n')  # noqa: ASYNC240 - a small file
    assert await default_model() == "shop"
    assert "shop plays: up.model of" in capsys.readouterr().err


async def test_without_a_platform_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnclearEvaluation, match=r"MODEL missing, and no running platform was found.*claude"):
        await default_model()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Said(200, {"data": [{"id": MODEL}]}), ""),
        (Said(200, {"data": [{"id": "a"}, {"id": "b"}]}), r"serves a, b; name one: {name}#a"),
        (
            Said(200, {"data": [{"id": str(number)} for number in range(7)]}),
            r"serves 0, 1, 2, 3, 4 and 2 more; name one: {name}#0",
        ),
        (Said(200, {"data": []}), r"answered 200 and names no model; name one: {name}#model"),
        (Said(404, "what?"), r"answered 404 and names no model; name one: {name}#model"),
        (Said(401, "no"), "answered 401: the key is not accepted"),
    ],
)
@pytest.mark.parametrize("kind", ["", "openai:"])
def test_a_url_alone_is_the_only_model_of_its_server(
    kind: str, answer: Said, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    with serving(lambda asked: answer) as server:
        name = f"{kind}{server.url}/v1"
        assert asyncio.run(named_agent(f"{name}#mine")) == f"{name}#mine"
        assert server.asked == []
        if not said:
            assert asyncio.run(named_agent(name)) == f"{name}#{MODEL}"
            assert asyncio.run(named_agent(f"{name}#")) == f"{name}#{MODEL}"
            return
        with pytest.raises(PlayRefused, match=said.format(name=name)):
            asyncio.run(named_agent(name))
