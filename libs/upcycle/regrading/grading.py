"""Grades the chosen trajectories of a run again, a few at once, each in an environment of its own."""

import asyncio
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from upcycle.errors import UpcycleError
from upcycle.external.judging import Judges
from upcycle.judge_calls import JudgeQuestion, JudgeReply
from upcycle.playing.blame import blame_for
from upcycle.playing.environment_calls import OpenEnvironment, PlayFailure, PlayLimits
from upcycle.playing.episode import PlayedEpisode
from upcycle.playing.forking import EpisodeHosts, hosts_of
from upcycle.playing.recorded import BY_THE_GRADE, RecordedEpisode, StoredGrade, recorded_of
from upcycle.playing.replay import ReplayDifference, Replayed, ReplayRules, replay_episode
from upcycle.regrading.chosen import ChosenTrajectory, GradedRun
from upcycle.regrading.errors import RegradeRefused
from upcycle.reporting.external_rows import flat_subscores
from upcycle.rewards import EvaluationResult
from upcycle.task_rows import EnvironmentRef, Task

MAX_CONCURRENT: Final = 8
"""Trajectories at once, by default."""
_EXTRA: Final = "environment"
"""Where extra graders of the operator count too, the environment's own grade has this name among theirs."""
_OUR_BUG: Final = "sampler_error"
_LIST_S: Final = 60.0

Outcome = Literal["graded", "kept", "not_reproducible", "failed", "unread"]


@dataclass(frozen=True, slots=True)
class Regraded:
    """What became of one trajectory. kept: the policy failed before it answered, which no grader sees.
    new: of graded and kept ones. why: of the others; difference: of what is not reproducible. asked_judge: a
    model took part in the new grade. had_extras: graders of the operator counted in what was stored; old is
    the environment's part of it."""

    name: str
    task: Task
    outcome: Outcome
    old: StoredGrade | None = None
    new: StoredGrade | None = None
    why: str = ""
    difference: ReplayDifference | None = None
    asked_judge: bool = False
    had_extras: bool = False


@dataclass(frozen=True, slots=True)
class RegradeOptions:
    """is_own_source: what grades is what judged the run, so that its states are compared, too. cells: folder
    below which each episode has its own, in a cell; None: it touches what this user may touch. ignored: as of
    ReplayRules."""

    max_concurrent: int = MAX_CONCURRENT
    is_own_source: bool = True
    cells: Path | None = None
    ignored: re.Pattern[str] | None = None
    cut: float = 0.0
    """Only the first such share of each success is played, and graded; 0: each trajectory whole."""
    limits: PlayLimits = field(default_factory=PlayLimits)


async def regrade(
    run: GradedRun, options: RegradeOptions, on_each: Callable[[Regraded], None] = lambda one: None
) -> list[Regraded]:
    """In the order of the trajectories. on_each: called as each one ends.

    Raises before any work RegradeRefused for an environment without a scenario of the tasks, and what loading
    it raises."""
    judges = Judges()
    try:
        async with AsyncExitStack() as ending:
            hosts = dict[EnvironmentRef, EpisodeHosts]()
            for environment in dict.fromkeys(one.task.environment for one in run.trajectories):
                hosts[environment] = await asyncio.to_thread(hosts_of, environment, options.cells)
                ending.push_async_callback(asyncio.to_thread, hosts[environment].close)
                tasks = [one.task for one in run.trajectories if one.task.environment == environment]
                await _check_scenarios(hosts[environment], tasks)
            grading, slots = _Grading(hosts, judges, options), asyncio.Semaphore(options.max_concurrent)

            async def one(chosen: ChosenTrajectory) -> Regraded:
                async with slots:
                    done = await grading.regraded(chosen)
                on_each(done)
                return done

            async with asyncio.TaskGroup() as group:
                begun = [group.create_task(one(chosen)) for chosen in run.trajectories]
            return [task.result() for task in begun]
    finally:
        await judges.close()


async def _check_scenarios(hosts: EpisodeHosts, tasks: Sequence[Task]) -> None:
    host = await hosts.new(tasks[0])
    try:
        async with host.channel() as channel:
            known = [str(row["id"]) for row in await channel.list_tasks(timeout_s=_LIST_S)]
    finally:
        await host.end()
    if missing := sorted({task.scenario for task in tasks} - set(known)):
        environment = tasks[0].environment
        raise RegradeRefused(
            f"{environment.path}: environment {environment.name!r} has no scenario {missing[0]!r:.80}, "
            "which the trajectories played",
            f"it has {', '.join(sorted(known)) or 'none'}",
        )


class _Grading:
    def __init__(
        self, hosts: dict[EnvironmentRef, EpisodeHosts], judges: Judges, options: RegradeOptions
    ) -> None:
        self._hosts, self._judges, self._options = hosts, judges, options

    async def regraded(self, chosen: ChosenTrajectory) -> Regraded:
        """Whatever goes wrong with one trajectory leaves the others as they are."""
        found = Regraded(chosen.name, chosen.task, "unread")
        try:
            recorded = recorded_of(await chosen.read(), chosen.name)
        except Exception as error:  # removed by retention, damaged, not answered for in time
            return replace(found, why=_words(error))
        found = replace(found, old=recorded.grade)
        if recorded.policy_failure not in BY_THE_GRADE:
            return replace(found, outcome="kept", new=recorded.grade, why=recorded.policy_failure)
        if self._options.cut:
            if not recorded.grade.success or recorded.guidance:
                return replace(
                    found, outcome="kept", new=recorded.grade, why="no success of the policy alone"
                )
            recorded = recorded.cut_at(self._options.cut)
        judged_by = recorded.source_digest
        if self._options.is_own_source and judged_by not in ("", chosen.source_digest):
            why = f"it was judged by source {judged_by[:12]}, and its run by another one"
            return replace(found, outcome="failed", why=why)
        try:
            return await self._replayed(found, recorded)
        except UpcycleError as error:
            return replace(found, outcome="failed", why=_words(error))
        except Exception as error:
            why = f"{_OUR_BUG}: {_words(error)}\n{traceback.format_exc()}"
            return replace(found, outcome="failed", why=why)

    async def _replayed(self, found: Regraded, recorded: RecordedEpisode) -> Regraded:
        hosts, options = self._hosts[found.task.environment], self._options
        with_states = options.is_own_source and not options.cut
        judge, rules = _CountedJudge(self._judges), ReplayRules(with_states, options.ignored)
        host = await hosts.new(found.task)
        try:
            async with host.channel() as channel:
                environment = OpenEnvironment(channel, host.ended_how, judge.ask)
                done = await replay_episode(recorded, found.task, environment, options.limits, rules)
        finally:
            await host.end()
        found = replace(found, asked_judge=judge.num_asked > 0)
        if done.difference is not None:
            return replace(found, outcome="not_reproducible", difference=done.difference)
        if done.failure is not None:
            return await self._failed(found, done.failure, hosts, host.output())
        return _graded(found, done)

    async def _failed(
        self, found: Regraded, failure: PlayFailure, hosts: EpisodeHosts, output: str
    ) -> Regraded:
        """A grader that fails on this answer alone counts as 0, as it does on the platform."""
        episode = PlayedEpisode(found.task, failure=failure)
        blame = await blame_for(episode, hosts, self._options.limits, output)
        if blame.policy_failure:
            zero = StoredGrade(0.0, False)
            return replace(found, outcome="graded", new=zero, why=f"{blame.policy_failure}: {blame.detail}")
        return replace(found, outcome="failed", why=f"{blame.failure}: {blame.detail}")


class _CountedJudge:
    """The judges of one trajectory."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self.num_asked = 0

    async def ask(self, question: JudgeQuestion) -> JudgeReply:
        """As `upcycle play` asks. Raises UpcycleError."""
        self.num_asked += 1
        return await self._judges.ask(question)


def _graded(found: Regraded, done: Replayed) -> Regraded:
    assert done.result is not None and found.old is not None  # noqa: S101, PT018 - the third of three
    new = _grade(done.result)
    top = {path.split("/")[0] for path in new.subscores}
    if _EXTRA not in found.old.subscores or _EXTRA in top:
        return replace(found, outcome="graded", new=new)
    return replace(found, outcome="graded", new=new, old=_own_part(found.old), had_extras=True)


def _grade(result: EvaluationResult) -> StoredGrade:
    rows = [one.to_json() for one in result.subscores]
    return StoredGrade(result.score, bool(result.success), dict(flat_subscores(rows)))


def _own_part(stored: StoredGrade) -> StoredGrade:
    """What the environment said, of a grade to which others were added."""
    pairs = ((path.partition("/"), value) for path, value in stored.subscores.items())
    own = {below: value for (top, _, below), value in pairs if top == _EXTRA and below}
    return StoredGrade(stored.subscores[_EXTRA], stored.success, own)


def _words(error: Exception) -> str:
    from upcycle.rpc import RemoteError

    if isinstance(error, RemoteError | UpcycleError):
        return error.message or str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
