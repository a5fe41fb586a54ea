"""A real gateway over real embedded engines: the policy of one speaks, that of the other calls a tool."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.policy_engine.policies import Shape, make_policy, make_tool_caller

from upcycle.api.common.v1 import common_pb2

MODEL = "incident"
CONTEXT = 512
SHAPE = Shape(layers=2, hidden=128, inner=192, heads=4, kv_heads=2, head_dim=32, context=CONTEXT, scale=0.1)


@dataclass(frozen=True)
class RealEngine:
    """A process that serves version 0 of `model`."""

    url: str
    model: str = MODEL
    version: int = 0
    held: frozenset[int] = frozenset()
    kind: str = "embedded"


@contextmanager
def running_engine(directory: Path, log: Path) -> Iterator[RealEngine]:
    """Until the block ends; its port is the first line that it prints."""
    program = [sys.executable, "-m", "embedded_engine"]
    command = [*program, "--model", str(directory), "--served-model-name", MODEL]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, log.read_text()
        yield RealEngine(f"http://127.0.0.1:{orjson.loads(first)['port']}")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def speaking_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """Its policy has random weights: it says something, and never calls a tool."""
    folder = tmp_path_factory.mktemp("speaking")
    with running_engine(make_policy(folder / "v0", seed=700, shape=SHAPE), folder / "log") as engine:
        yield engine


@pytest.fixture(scope="session")
def calling_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """Its policy answers everything with one call of `search`."""
    folder = tmp_path_factory.mktemp("calling")
    with running_engine(make_tool_caller(folder / "v0", SHAPE), folder / "log") as engine:
        yield engine


def serve(gateway: Gateway, engine: RealEngine) -> Gateway:
    gateway.registry.head(MODEL, 0)
    gateway.registry.lease(engine, channel=common_pb2.CHANNEL_HEAD)
    return gateway


@pytest.fixture
def speaking(gateway: Gateway, speaking_engine: RealEngine) -> Gateway:
    return serve(gateway, speaking_engine)


@pytest.fixture
def calling(gateway: Gateway, calling_engine: RealEngine) -> Gateway:
    return serve(gateway, calling_engine)
