"""A program with a loop and tools of its own as the agent of an evaluation, beside our harness.

`upcycle eval --agent "cmd: …"` against `upcycle eval --gateway`: the same incidents, environments, gateway,
engine, budgets and episodes at once, both greedy, so that both should say the same. They differ in who plays:
a process for each episode, whose calls are recorded as a session, or the harness in the command's process. In
turns.
"""

import asyncio
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from examples.incident.env import env, prompt
from examples.incident.world import draw_incident

from benchmarks.black_box_agent import MAX_TOKENS, MAX_TURNS
from benchmarks.black_box_tasks import COUNT, tasks
from benchmarks.figures import Figure, Limit, Peer, number
from benchmarks.options import Options
from benchmarks.programs import printed_by
from benchmarks.stacks import MODEL, REPOSITORY, Bench, BenchmarkFailed, bench, platform_variables
from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

CONCURRENT: Final = 8
"""The default of `upcycle eval` for what plays here."""
TARGET_RATIO: Final = 1.15
_REPEATS: Final = 3
_WARM: Final = 4
_LIMIT_S: Final = 900.0
_STORED_S: Final = 60.0
HARNESS, PLATFORM, PROGRAM, OPENAI = "the harness", "the platform", "the agent", "the openai client"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one evaluation. seconds: from its first episode to its end; success: a share; turns: the mean."""

    seconds: float
    success: float
    turns: float
    num_episodes: int


Outcomes = Mapping[str, Sequence[Outcome]]


async def measure(options: Options) -> list[Figure]:
    """All in turns, on one platform."""
    job = options.scratch / "job.json"
    job.write_text(json.dumps(job_of()), encoding="utf-8")
    count = options.sized(COUNT, _WARM)
    async with bench(model=MODEL) as running:
        contenders = (HARNESS, PROGRAM, OPENAI, PLATFORM)
        for name in contenders:
            await _evaluated(running, name, job, _WARM)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
        for _ in range(options.repeats(_REPEATS)):
            for name in contenders:
                outcomes[name].append(await _evaluated(running, name, job, count))
    return figures_of(outcomes)


def job_of() -> dict[str, Any]:
    """What the agent brings along: its tools, and its incidents by their prompts."""
    incidents = {}
    for task in tasks:
        seed = task.args["seed"]
        incidents[prompt(draw_incident("train", seed).alerting)] = ("train", seed)
    tools = [{"type": "function", "function": tool.spec.to_json()} for tool in env.tools.values()]
    return {"tools": tools, "incidents": incidents}


def figures_of(outcomes: Outcomes) -> list[Figure]:
    """The limits are those of the agent that starts as fast as a program in Python can."""
    harness, program = outcomes[HARNESS], outcomes[PROGRAM]
    count = harness[0].num_episodes
    return [
        Figure(
            f"{count} incident episodes, {CONCURRENT} at once, by a black-box agent",
            "s",
            _seconds(program),
            _beside(program, harness),
            Limit(TARGET_RATIO, "×", at_most=True, of_ratio=True),
            f"{_said(PROGRAM, program)}; {_said(HARNESS, harness)}",
        ),
        Figure(
            "success of the black-box agent and of the harness, apart",
            "points",
            tuple(100 * abs(a.success - b.success) for a, b in zip(program, harness, strict=True)),
            limit=Limit(100 * noise(program[0], harness[0]), " points", at_most=True),
            note="the limit: two standard errors of that difference",
        ),
        Figure(
            "the same by a black-box agent that imports the openai client",
            "s",
            _seconds(outcomes[OPENAI]),
            _beside(outcomes[OPENAI], harness),
            note=_said("it", outcomes[OPENAI]),
        ),
        Figure(
            "the same by `upcycle eval tasks.py incident`, played by the platform",
            "s",
            _seconds(outcomes[PLATFORM]),
            _beside(outcomes[PLATFORM], harness),
            note=_said("it", outcomes[PLATFORM]),
        ),
    ]


def noise(one: Outcome, other: Outcome) -> float:
    """Two standard errors of the difference of two shares of success; of shares that are 0 or 1, those of one
    episode that ended otherwise."""
    counts = one.num_episodes + other.num_episodes
    share = (one.success * one.num_episodes + other.success * other.num_episodes) / counts
    share = min(max(share, 1 / counts), 1 - 1 / counts)
    return 2 * math.sqrt(share * (1 - share) * (1 / one.num_episodes + 1 / other.num_episodes))


def _seconds(outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    return tuple(one.seconds for one in outcomes)


def _beside(ours: Sequence[Outcome], harness: Sequence[Outcome]) -> Peer:
    """The ratio is the median of those of the turns."""
    pairs = zip(ours, harness, strict=True)
    ratio = statistics.median(one.seconds / other.seconds for one, other in pairs)
    return Peer("our harness, `--gateway`", statistics.median(_seconds(harness)), "s", ratio)


def _said(who: str, outcomes: Sequence[Outcome]) -> str:
    success = statistics.fmean(one.success for one in outcomes)
    turns = statistics.fmean(one.turns for one in outcomes)
    return f"{who}: success {success:.1%}, {number(turns)} turns"


async def _evaluated(running: Bench, name: str, job: Path, count: int) -> Outcome:
    """The command as a person types it, from the repository."""
    written = job.parent / f"{name.replace(' ', '-')}-{count}.jsonl"
    written.unlink(missing_ok=True)
    common = ("--json", "--limit", str(count), "--max-concurrent", str(CONCURRENT))
    flags = _flags(name, job, written)
    done = await _upcycle(running, "eval", "benchmarks/black_box_tasks.py", MODEL, *common, *flags)
    turns = await _turns_of_sessions(running, done, count) if "sessions" in done else None
    return outcome_of(name, done, turns)


def _flags(name: str, job: Path, written: Path) -> tuple[str, ...]:
    """Of the contender. The budgets of the agent are its own."""
    budgets = ("--temperature", "0", "--max-turns", str(MAX_TURNS), "--max-tokens-per-turn", str(MAX_TOKENS))
    if name == PLATFORM:
        return budgets
    here = ("--trajectories", str(written))
    if name == HARNESS:
        return ("--gateway", *budgets, *here)
    client = "openai" if name == OPENAI else "http"
    return ("--agent", f"cmd: {sys.executable} -m benchmarks.black_box_agent {job} {client}", *here)


def outcome_of(name: str, done: Mapping[str, Any], turns: float | None = None) -> Outcome:
    """Of the line `done` of `upcycle eval --json`. turns: where the evaluation itself does not know them.
    Raises BenchmarkFailed where an episode is missing."""
    coverage, report = done["coverage"], done["report"]
    if coverage["num_graded"] != coverage["num_planned"]:
        raise BenchmarkFailed(
            f"{name}: {coverage['num_graded']} of {coverage['num_planned']} episodes were graded: {coverage}"
        )
    return Outcome(
        done["evaluation"]["duration_s"],
        report["overall"]["success"]["value"],
        report["mean_turns"] if turns is None else turns,
        coverage["num_graded"],
    )


async def _turns_of_sessions(running: Bench, done: Mapping[str, Any], count: int) -> float:
    """Calls of a recorded session on average. Raises BenchmarkFailed where a session has no reward."""
    sessions = done["sessions"]
    wanted, left = set(sessions["graded"]), sessions["left"]
    if left or len(wanted) != count:
        raise BenchmarkFailed(f"{len(wanted)} of {count} sessions were graded: {left}")
    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=sessions["run_id"]), page_size=1000)
    async with asyncio.timeout(_STORED_S):
        while True:
            listed = await running.platform.trajectories.ListTrajectories(request, timeout=30)
            turns = [one.num_turns for one in listed.trajectories if one.episode.trajectory_id in wanted]
            if len(turns) == count:
                return statistics.fmean(turns)
            await asyncio.sleep(0.1)


async def _upcycle(running: Bench, *arguments: str) -> Mapping[str, Any]:
    """The last line that the command prints."""
    argv = (str(Path(sys.executable).with_name("upcycle")), *arguments)
    keys = {"UPCYCLE_API_KEY": running.addresses.gateway_key()}
    variables = {**os.environ, **platform_variables(running.addresses), **keys}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, env=variables, stdout=pipe, stderr=pipe, cwd=REPOSITORY
    )
    done: Mapping[str, Any] = json.loads((await printed_by(process, argv, _LIMIT_S)).splitlines()[-1])
    return done
