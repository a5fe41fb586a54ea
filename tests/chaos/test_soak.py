"""What `make soak` says of what it measured, and when it fails."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.soak import report, verdict

MEGABYTE = 1e6
WELL = {"hung": 0, "runs": {"completed": 9}}


def half_an_hour(value: Callable[[float], float]) -> list[tuple[float, float]]:
    return [(t, value(t)) for t in (5.0 * number for number in range(360))]


def said(process: str, what: str, value: Callable[[float], float], settled: int = 10_000) -> dict[str, Any]:
    return {**WELL, **report({(process, what): half_an_hour(value)}, settled, {"s3": (0, 50_000_000)})}


@pytest.mark.parametrize(
    ("process", "what", "value"),
    [
        ("scenario_runner-1", "memory_bytes", lambda t: 150 * MEGABYTE + 5e3 * t),
        ("grpo_trainer-1", "open_files", lambda t: 28 + t // 100),
        ("policy_engine-2", "disk_bytes", lambda t: 20 * MEGABYTE + 1e4 * t),
        ("trajectory_store-1", "livez_s", lambda t: 0.005 + 1e-4 * t),
        ("nats", "memory_bytes", lambda t: 50 * MEGABYTE + 10_000 * 10_000 * t / 1800),
        ("nats-3", "open_files", lambda t: 30 + t // 20),
    ],
)
def test_what_grows_is_named_and_fails_the_soak(
    process: str, what: str, value: Callable[[float], float]
) -> None:
    line = said(process, what, value)
    (named,) = line["grows"]
    assert named.startswith(f"{process} {what}: ")
    assert not verdict(line)


@pytest.mark.parametrize(
    ("process", "what", "value"),
    [
        ("scenario_runner-1", "memory_bytes", lambda t: 150 * MEGABYTE + 1e5 * min(t, 180)),
        ("grpo_trainer-1", "open_files", lambda t: 28 + min(t // 100, 3)),
        ("trajectory_store-1", "livez_s", lambda t: 0.005 + 1e-6 * t),
        ("scenario_runner-1", "family_bytes", lambda t: 1e5 * t),
        ("nats", "memory_bytes", lambda t: 50 * MEGABYTE + 4_000 * 10_000 * t / 1800),
    ],
)
def test_what_fills_up_and_what_grows_with_the_episodes_does_not(
    process: str, what: str, value: Callable[[float], float]
) -> None:
    line = said(process, what, value)
    assert (line["grows"], verdict(line)) == ([], True)
    assert process in line["slopes"]


def test_memory_of_what_keeps_episodes_is_said_by_the_episode() -> None:
    line = said("nats", "memory_bytes", lambda t: 50 * MEGABYTE + 4_000 * 10_000 * t / 1800)
    assert line["kept_memory_per_episode"] == {"nats": pytest.approx(4_000, rel=0.02)}
    assert line["stored_bytes_per_episode"] == {"s3": 5_000}


@pytest.mark.parametrize("change", [{"hung": 1}, {"runs": {"failed": 1}}, {"settled": 0}])
def test_a_soak_fails_for_what_did_not_go_well(change: dict[str, Any]) -> None:
    line = said("nats", "open_files", lambda t: 30.0)
    assert verdict(line)
    assert not verdict({**line, **change})
