"""How large: every figure worked out on paper."""

import json

import pytest

from upcycle.cli.main import run
from upcycle.cli.sizing import (
    GIB,
    Line,
    Machines,
    ModelShape,
    Prices,
    Workload,
    cost_of_batch,
    engine_bytes,
    environments_per_core,
    kv_bytes_per_token,
    seconds_of_batch,
    size,
    trainer_bytes,
)

MODEL = ModelShape(1e9, 1e9, layers=10, hidden=100, kv_heads=2, head_dim=50, dtype="bfloat16")
WORK = Workload(prompts=10, group=10, prompt_tokens=100, tokens=90, episode_s=2.0, max_staleness=3)
MACHINES = Machines(
    engines=2, trainers=1, environment_cores=1, engine_gflops=1000.0, trainer_gflops=2000.0, sequences=5
)


def lines(prices: Prices | None = None) -> dict[str, Line]:
    return {line.name: line for line in size(MODEL, WORK, MACHINES, prices or Prices())}


def test_environments_per_core_are_bounded_by_starts_and_by_the_measured_most() -> None:
    assert environments_per_core(1.0) == pytest.approx(130.0)  # 260 / 2 started a second, each lives a second
    assert environments_per_core(100.0) == 1024.0  # 2,048 on two cores


def test_memory_of_an_engine_is_weights_and_keys_and_values() -> None:
    assert kv_bytes_per_token(MODEL) == 4000  # 2 × 10 layers × 2 heads × 50 × 2 bytes
    assert engine_bytes(MODEL, WORK, MACHINES) == 2e9 + 5 * 190 * 4000


def test_memory_of_the_trainer_is_16_bytes_a_trained_parameter_and_activations() -> None:
    machines = Machines(microbatch_tokens=10)
    assert trainer_bytes(MODEL, machines) == 16e9 + 10 * 10 * 100 * 68
    adapters = ModelShape(1e9, 1e6, 10, 100, 2, 50)
    assert trainer_bytes(adapters, machines) == 4e9 + 12e6 + 680_000


def test_seconds_of_a_batch() -> None:
    took = seconds_of_batch(MODEL, WORK, MACHINES)
    assert WORK.computed_tokens == 10_000  # 10 × 100 of prompts, once a group, and 100 × 90 sampled
    assert took.engine == pytest.approx(10.0)  # 2 × 1 G × 10,000 / (2 × 1,000 G)
    assert took.trainer == pytest.approx(30.0)  # 6 × 1 G × 10,000 / 2,000 G
    assert took.environment == pytest.approx(200 / 260)  # 100 × 2 s on 130 × 2 places
    assert took.platform == pytest.approx(100 / 50.5)
    assert took.overlapped == pytest.approx(30.0)
    assert took.in_turn == pytest.approx(40.0)


def test_bytes_and_episodes_in_flight() -> None:
    found = lines()
    assert found["episodes in flight, at most"].value == 400
    assert found["cores for all of them"].value == 2  # 400 / 260
    assert found["a published version"].value == pytest.approx(4e9 / GIB)
    assert found["moved per version"].value == pytest.approx(
        12e9 / GIB
    )  # stored once, fetched by two engines
    assert found["training state, stored per step"].value == pytest.approx(12e9 / GIB)


def test_cost_counts_all_devices_for_the_whole_batch_and_is_left_out_without_prices() -> None:
    prices = Prices(engine=3.0, trainer=5.0, core=1.0)
    assert cost_of_batch(30.0, MACHINES, prices) == pytest.approx(0.1)  # (2 × 3 + 5 + 1) × 30 / 3600
    assert lines(prices)["cost of 1,000 episodes"].value == pytest.approx(1.0)
    assert "cost of a batch" not in lines()


def test_every_line_of_the_command_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--parameters", "1e9", "--engine-price", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["basis"] for row in rows} == {"measured", "computed"}
    assert all(row["kind"] == "size" and row["how"] for row in rows)
    assert run(["size"]) == 0
    table = capsys.readouterr().out.splitlines()[1:]
    assert table
    assert all(" measured " in line or " computed " in line for line in table)


@pytest.mark.parametrize(
    "bad", [["--parameters", "0"], ["--dtype", "int4"], ["--core-price", "-1"], ["--grup", "8"]]
)
def test_impossible_values_are_a_usage_error(bad: list[str]) -> None:
    assert run(["size", *bad]) == 2
