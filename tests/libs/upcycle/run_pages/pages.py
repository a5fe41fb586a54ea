"""A training run and an evaluation as pages, made of a few rows."""

import random
from dataclasses import replace
from typing import Any

from tests.libs.upcycle.reporting.rows import episode, evaluation

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.report import report_of
from upcycle.run_pages.values import (
    GateVerdict,
    Header,
    Message,
    RunPage,
    ShownCall,
    ShownEpisode,
    ShownGrade,
    ShownSetting,
    ShownToken,
    ShownTurn,
    Step,
)

TRACEBACK = 'grade: Traceback (most recent call last):\n  File "env.py", line 12, in count\nKeyError: "tea"'


def rows(num_tasks: int = 6, group: int = 4) -> list[EpisodeRow]:
    """The first task is never solved, the last always; one episode timed out and one was not readable."""
    drawn = random.Random(7)
    found = []
    for task in range(num_tasks):
        for at in range(group):
            solved = drawn.random() < task / (num_tasks - 1)
            reward = 1.0 if solved else round(drawn.random() * 0.6, 2)
            family = ("database", "memory")[task % 2]
            found.append(episode(f"task-{task}", at, reward, family=family, num_turns=3, num_tokens=40))
    found[1] = replace(found[1], reward=None, success=False, failure="timeout")
    found[2] = replace(found[2], reward=0.0, success=False, policy_failure="policy_unreadable")
    return found


def shown(row: EpisodeRow, why: str = "worst", **fields: Any) -> ShownEpisode:
    """Two turns, the first with a call that failed."""
    call = ShownCall("search_logs", '{"q": "oom"}', "no such host", is_error=True, seconds=0.012)
    turns = (
        ShownTurn("Let me look.", (call,), ("17 tokens", "v3 × 17", "stop")),
        ShownTurn("OOM", tokens=(ShownToken("O", -0.01), ShownToken("OM", -2.5))),
    )
    grades = (ShownGrade(0, "service", 1.0, 0.5), ShownGrade(1, "exact", 1.0, 1.0, '{"wanted": "OOM"}'))
    values: dict[str, Any] = {
        "words": ("v3", "answered"),
        "prompt": (Message("user", "Why is checkout down?"),),
        "turns": turns,
        "answer": "OOM",
        "grades": grades,
        **fields,
    }
    return ShownEpisode(row, why, **values)


def evaluation_page(**fields: Any) -> RunPage:
    found = rows()
    played = evaluation(*found, group=4)
    chosen = [shown(found[0]), shown(found[1], "no reward", detail=TRACEBACK), shown(found[-1], "best")]
    header = Header(
        "run-a",
        "evaluation",
        "completed",
        (("model", "incident"), ("version", "v3"), ("source that judged it", "c0dec0dec0de")),
        (ShownSetting("sampling.temperature", "0.7", "1"),),
    )
    page = RunPage(header, played.episodes, tuple(chosen), report_of(played), group=4)
    return replace(page, **fields)


def training_page(num_steps: int = 30) -> RunPage:
    """Steps whose reward rises, and three verdicts."""
    drawn = random.Random(3)
    steps = tuple(
        Step(
            step,
            step,
            {
                "reward_mean": 0.2 + 0.02 * step + drawn.gauss(0, 0.03),
                "success_rate": 0.1 + 0.02 * step,
                "grad_norm": 1 + drawn.random(),
                "mismatch_kl": 1e-4 * drawn.random(),
                "entropy": 1.5 - 0.02 * step,
            },
            staleness=drawn.random(),
        )
        for step in range(1, num_steps + 1)
    )
    verdicts = (
        GateVerdict("ckpt-10", 10, 10, False, "the lower bound is not above 0", 0.35, 0.30, -0.04, 0.95, 24),
        GateVerdict("ckpt-20", 20, 20, True, "passed", 0.52, 0.30, 0.11, 0.95, 24),
        GateVerdict("ckpt-30", 30, 30, True, "passed", 0.70, 0.52, 0.07, 0.95, 24),
    )
    header = Header("run-t", "training run", "completed", (("model", "incident"), ("steps", "30 of 30")))
    return evaluation_page(header=header, report=None, steps=steps, verdicts=verdicts)
