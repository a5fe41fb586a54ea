"""What is missing of an evaluation: named, never a success, and by default no result."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving

from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli.exits import Exit
from upcycle.cli.main import run as run_command
from upcycle.errors import UpcycleError
from upcycle.evaluation import EvalContext, EvaluationFailed, evaluation_of
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.results import Coverage, Run, coverage_of
from upcycle.tasks import EnvironmentRef, Task

GOOD: dict[str, Any] = {"status": ts.EPISODE_STATUS_GRADED, "reward": 1.0, "success": True}
TASK = Task(EnvironmentRef("sums"), "sum", "{}", slug="a")


def broken(kind: str) -> dict[str, Any]:
    return {"status": ts.EPISODE_STATUS_FAILED, "failure_kind": kind}


def results(*rows: dict[str, Any], members: int = 1) -> list[ts.EpisodeResult]:
    """One result per row; `members` in a row are of one task."""
    return [
        ts.EpisodeResult(task_slug=f"t{index // members}", member=index % members, **row)
        for index, row in enumerate(rows)
    ]


@pytest.fixture
async def planner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Planner]:
    """A planner whose evaluation graded 1 of 20 tasks, with success; the command line finds it."""
    said = Planner()  # type: ignore[abstract]
    done = evaluation("run-e")
    done.reward_mean = done.success_rate = 1.0
    said.answer, said.watched = done, [done]
    said.results = results(GOOD, *[broken("scenario_error")] * 19)
    async with serving(said) as addresses:
        for peer, address in addresses.peers.items():
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
        yield said


async def evaluated(*options: str) -> int:
    """Exit status of `upcycle eval`, which runs a loop of its own."""
    return await asyncio.to_thread(run_command, ["eval", "sums", "m", *options])


async def test_nineteen_missing_tasks_are_named_and_fail_the_command(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await evaluated("--min-success", "0.9") == Exit.GATE_UNMET
    out, err = capsys.readouterr()
    said = "graded 1 of 20 tasks; 19 missing: scenario_error"
    assert f"run-e: success 5.0%, reward 1.000, {said}" in out
    assert f"{said}: 5.0% is below --min-coverage 95.0%" in err
    assert "success 5.0% of all 20 episodes is below --min-success 90.0%" in err


async def test_survivors_do_not_meet_min_success(planner: Planner) -> None:
    assert await evaluated("--min-coverage", "0") == Exit.OK
    assert await evaluated("--min-coverage", "0", "--min-success", "0.05") == Exit.OK
    assert await evaluated("--min-coverage", "0", "--min-success", "0.06") == Exit.GATE_UNMET


async def test_programs_read_the_coverage(planner: Planner, capsys: pytest.CaptureFixture[str]) -> None:
    assert await evaluated("--json") == Exit.GATE_UNMET
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["kind"], done["run_id"]) == ("done", "run-e")
    assert done["coverage"] == {
        "num_tasks": 20,
        "num_planned": 20,
        "num_graded": 1,
        "num_successes": 1,
        "missing": {"scenario_error": 19},
        "policy_failures": {},
        "num_left_out": 0,
        "num_cheats": 0,
        "share": 0.05,
    }


async def test_one_of_twenty_may_be_missing(planner: Planner) -> None:
    planner.results = results(*[GOOD] * 19, broken("timeout"))
    assert await evaluated("--min-success", "0.95") == Exit.OK
    planner.results = results(*[GOOD] * 18, *[broken("timeout")] * 2)
    assert await evaluated() == Exit.GATE_UNMET


@pytest.mark.parametrize("flag", ["--min-coverage", "--min-success"])
@pytest.mark.parametrize("share", ["95", "-0.1", "nan"])
async def test_a_bar_that_is_no_share_is_refused_before_anything_runs(
    planner: Planner, flag: str, share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await evaluated(f"{flag}={share}") == Exit.USAGE
    assert f"{flag} is {float(share):g}" in capsys.readouterr().err
    assert not planner.submitted


def run(task: str, failure: str = "", *, success: bool = False) -> Run:
    return Run(task, float(success), success, "", "", failure, run_id="run-e")


def test_groups_are_counted_in_episodes_and_kinds_by_number() -> None:
    rows = [run("a", success=True), run("a", "timeout"), run("b", "engine_error"), run("b", "timeout")]
    coverage = coverage_of(rows)
    missing = {"timeout": 2, "engine_error": 1}
    assert coverage == Coverage(num_tasks=2, num_planned=4, num_graded=1, num_successes=1, missing=missing)
    assert (coverage.share, coverage.success_rate) == (0.25, 0.25)
    assert str(coverage) == "graded 1 of 4 episodes of 2 tasks; 3 missing: 2 timeout, 1 engine_error"
    assert str(coverage_of([run("a")])) == "graded 1 of 1 task"
    assert (coverage_of([]).share, coverage_of([]).success_rate) == (0.0, 0.0)


def test_the_mean_of_survivors_is_no_result_of_the_sdk() -> None:
    ctx = evaluation_of(TASK)
    ctx.runs = [run("a", success=True), *[run("b", "environment_lost")] * 19]
    with pytest.raises(EvaluationFailed, match="graded 1 of 20 episodes of 2 tasks; 19 missing: environment"):
        assert ctx.reward
    takes_any = EvalContext(TASK, group=1, min_coverage=0)
    takes_any.runs = ctx.runs
    assert takes_any.reward == 1.0
    takes_any.runs = ctx.runs[1:]
    with pytest.raises(EvaluationFailed, match="graded 0 of 19"):
        assert takes_any.reward
    with pytest.raises(UpcycleError, match="min_coverage is 95"):
        evaluation_of(TASK, min_coverage=95)


def test_tasks_without_a_solution_are_left_out_and_a_success_at_one_is_named() -> None:
    rows = [run("a", success=True), run("b")]
    traps = [replace(run("x", success=n < 2), family=IMPOSSIBLE_FAMILY) for n in range(4)]
    coverage = coverage_of([*rows, *traps])
    assert (coverage.num_tasks, coverage.num_planned, coverage.success_rate) == (2, 2, 0.5)
    said = "graded 2 of 2 tasks; 4 of tasks without a solution left out, of which 2 passed: A HACK"
    assert str(coverage) == said
    assert str(coverage_of([*rows, *traps[2:]])).endswith(
        "; 2 of tasks without a solution left out, none passed"
    )
    ctx = evaluation_of(TASK)
    ctx.runs = [*rows, *traps[:2]]
    assert ctx.reward == 0.5
