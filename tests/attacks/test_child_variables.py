"""A secret of a service is looked for in the variables of what it starts."""

from pathlib import Path

import pytest
from tests.attacks.conftest import CANARIES
from tests.services.scenario_runner.fleets import running_fleet

from scenario_runner.domain.environments import PythonEnvironment
from service_kit.child_environment import child_environment

VARIABLES = PythonEnvironment("variables", str(Path(__file__).parent / "environments" / "variables.py"))
OF_A_SERVICE = {
    **CANARIES,
    "UPCYCLE_BUS_URL": "nats://upcycle:canary-bus@127.0.0.1:4222",
    "UPCYCLE_BUS_PASSWORD": "canary-bus",
    "UPCYCLE_S3_SECRET_KEY": "canary-s3",
    "UPCYCLE_SQL_URL": "postgresql://upcycle:canary-sql@db/runs",
    "SCENARIO_RUNNER_OPERATOR_KEY": "canary-operator",
    "UPCYCLE_API_KEY": "canary-gateway",
}


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_A_SERVICE.items():
        monkeypatch.setenv(name, value)


async def test_a_tool_finds_no_secret_of_the_runner(canaries: None) -> None:
    async with running_fleet() as fleet:
        seen = (await fleet.call(await fleet.open("play", source=VARIABLES), "look")).content

    assert "PATH" in seen
    assert "canary" not in seen


def test_a_child_gets_what_programs_need_and_no_secret(
    canaries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "3",
        "PYTHONPATH": "/opt",
        "TOKENIZERS_PARALLELISM": "false",
        "UPCYCLE_STACK_DIR": "/data",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    for name, value in needed.items():
        monkeypatch.setenv(name, value)

    given = child_environment()

    assert needed.items() <= given.items()
    assert not [name for name, value in given.items() if "canary" in value]


def test_what_a_child_needs_beside_that_is_named(canaries: None) -> None:
    assert child_environment(["HF_TOKEN", "NOT_SET"])["HF_TOKEN"] == CANARIES["HF_TOKEN"]
    assert "NOT_SET" not in child_environment(["NOT_SET"])
