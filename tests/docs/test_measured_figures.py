"""What `upcycle size` says was measured is what the benchmarks stored."""

import json
from pathlib import Path

import pytest

from upcycle.cli.sizing import MEASURED

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def figures(benchmark: str) -> dict[str, float]:
    stored = json.loads((RESULTS / f"{benchmark}.json").read_text())
    return {one["name"]: one["value"] for one in stored["figures"]}


def test_measured_figures_are_those_of_the_stored_benchmarks() -> None:
    environments = figures("environments")
    assert (
        environments["environments alive at once, each answering a tool call"] == MEASURED.environments_alive
    )
    private = environments["private memory of one environment (incident)"]
    assert private == pytest.approx(MEASURED.environment_mib, rel=0.01)
    started = environments["environments forked and started (incident: SQLite, four tools)"]
    assert started == pytest.approx(MEASURED.environments_started_per_s, rel=0.01)
    rate = figures("pipeline")["whole platform, default settings"]
    assert rate == pytest.approx(MEASURED.episodes_per_s, rel=0.01)
    sampled = figures("engine")["embedded engine, 128 at once, 1 thread"] * (128 + 32) / 128
    assert sampled * 2 * 703_232 / 1e9 == pytest.approx(MEASURED.engine_gflops, rel=0.01)
    note = next(
        one["note"]
        for one in json.loads((RESULTS / "trl_step.json").read_text())["figures"]
        if "uniform" in one["name"]
    )
    assert "without shared prompts 0.973 s" in note
    assert pytest.approx(MEASURED.trainer_gflops, rel=0.01) == 16_384 / 0.973 * 6 * 624_512 / 1e9 / 2
