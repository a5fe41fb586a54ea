"""Evaluations made of a few rows."""

from typing import Any

from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun


def episode(task: str, number: int, reward: float | None, **fields: Any) -> EpisodeRow:
    """Solved where its reward is 1; without a reward it timed out."""
    name = f"{task}-{number}"
    values = {
        "family": "f",
        "success": reward == 1.0,
        "failure": "timeout" if reward is None else "",
        **fields,
    }
    return EpisodeRow(task, values.pop("family"), f"ep-{name}", f"traj-{name}", reward, **values)


def evaluation(*episodes: EpisodeRow, group: int = 2, **fields: Any) -> EvaluatedRun:
    values: dict[str, Any] = {
        "run_id": "run-a",
        "taskset": "sums@1",
        "taskset_digest": "t" * 64,
        "source_digest": "c0de" * 16,
        "model": "m",
        "versions": (0,),
        "sampling": {"temperature": 1.0},
        "duration_s": 12.0,
        **fields,
    }
    return EvaluatedRun(group=group, episodes=episodes, **values)
