"""`upcycle eval` of an agent that is no model of the platform: in this process."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from upcycle.cli.best_of import NO_BEST_OF, BestOfFlags, Selector
from upcycle.cli.eval_commands import agent_of_command
from upcycle.cli.eval_external_flags import ExternalFlags
from upcycle.cli.eval_external_progress import ExternalProgress
from upcycle.cli.eval_external_report import say, way_back
from upcycle.cli.eval_flags import Report
from upcycle.cli.eval_view import eval_view
from upcycle.cli.exits import Exit
from upcycle.cli.output import human, print_json
from upcycle.cli.run_flags import eval_defaults
from upcycle.cli.task_choice import NO_CHOICE, TaskChoice
from upcycle.external.command_agent import CommandModel, is_command
from upcycle.playing.errors import PlayRefused
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.external_rows import PlannedEvaluation
from upcycle.reporting.trajectory_files import FOLDER, NAME
from upcycle.results import Run
from upcycle.run_config import Purpose
from upcycle.run_config.reading import RunFile, Sources
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.external.evaluating import ExternalOptions
    from upcycle.external.naming import ExternalModel
    from upcycle.external.resuming import KeptEpisodes
    from upcycle.tasks import Taskset

_SAMPLING: Final = (
    "temperature",
    "top_p",
    "max_turns",
    "max_tokens_per_turn",
    "max_tokens_per_episode",
    "context",
)
_USED: Final = frozenset(
    {"taskset", "taskset_name", "policy.model", "group_size", "max_concurrent", "label", "purpose"}
    | {f"sampling.{name}" for name in _SAMPLING}
)


async def evaluate_external(
    given: Sources,
    external: ExternalFlags,
    report: Report,
    choice: TaskChoice = NO_CHOICE,
    best: BestOfFlags = NO_BEST_OF,
    resume: str = "",
) -> int:
    """Play the tasks and report; the exit status. resume: the evaluation that goes on. Raises PlayRefused
    before any work for what cannot be played."""
    from upcycle.external.keeping import planned_evaluation
    from upcycle.local_runs import new_run_id

    _check(given, external, report, choice)
    asked = _asked(given)
    sampling = _sampling(given, asked)
    options = _options(given, asked, sampling, external.runtime)
    taskset = choice.of(await _taskset(asked))
    selector = await best.selector()
    if report.dry_run:
        _fits(selector, options)
        return _dry_run(taskset, report.as_json)
    model = await _model(given, external, sampling, taskset)
    if model.is_registered:
        sampling = {name: getattr(asked.sampling, name) for name in _SAMPLING}
        model = replace(model, sampling={name: sampling[name] for name in _SAMPLING[:2]})
        options = _options(given, asked, sampling, external.runtime)
    _fits(selector, options)
    planned = planned_evaluation(taskset, options, sampling)
    kept = _kept(resume, external.trajectories, planned, model.name)
    if kept is not None:
        options = replace(options, done=kept.done)
    chosen = _Chosen(resume or new_run_id(), planned, taskset, model, options, choice.remote, selector, kept)
    return await _played(chosen, external.trajectories, report)


def _kept(resume: str, place: Path | None, planned: PlannedEvaluation, agent: str) -> "KeptEpisodes | None":
    """Of the evaluation that goes on; None: a new one begins."""
    from upcycle.external.resuming import file_to_resume, kept_episodes

    return kept_episodes(file_to_resume(resume, place), resume, planned, agent) if resume else None


def _fits(selector: Selector | None, options: "ExternalOptions") -> None:
    """Raises what Selector.check raises."""
    if selector is not None:
        selector.check(options.group, options.limits.tokens.per_episode, "this evaluation")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What is evaluated. is_remote: the user wrote --remote. selector: of the best attempts; None: none are
    chosen. kept: of the evaluation that goes on."""

    run_id: str
    planned: PlannedEvaluation
    taskset: "Taskset"
    model: "ExternalModel"
    options: "ExternalOptions"
    is_remote: bool
    selector: Selector | None
    kept: "KeptEpisodes | None"


async def _played(chosen: _Chosen, place: Path | None, report: Report) -> int:
    """Play and report; the exit status."""
    from upcycle.external.sending import PlayedEvaluation, send_to_found

    run_id, taskset, model, options = chosen.run_id, chosen.taskset, chosen.model, chosen.options
    if chosen.kept is not None:
        chosen.kept.leave_failed()
    with _opened(place, run_id) as (path, lines), eval_view() as show:
        progress = ExternalProgress(lines, taskset, chosen.planned, chosen.kept)
        began_s = time.monotonic()

        def ready() -> None:
            _launched(chosen, report.as_json)
            progress.begin(show)

        try:
            runs = await _runs(chosen, ready, progress)
        except asyncio.CancelledError:  # Ctrl-C
            _interrupted(_evaluated(chosen, time.monotonic() - began_s, progress.rows), path)
            raise
    evaluated = _evaluated(chosen, time.monotonic() - began_s, progress.rows)
    selector = chosen.selector
    best = await selector.choose(evaluated, progress.lines_by_episode) if selector is not None else None
    if isinstance(model, CommandModel):  # the gateway has its episodes, with their tokens
        return say(evaluated, runs, path, report, model.recorded, best)
    sent = await send_to_found(PlayedEvaluation(run_id, model.name, taskset, options.group, progress.played))
    return say(evaluated, runs, path, report, sent, best)


async def _runs(chosen: _Chosen, ready: Callable[[], None], progress: ExternalProgress) -> list[Run]:
    """Of all episodes, those that were played before too. Where nothing is left, no server is asked."""
    from upcycle.external.evaluating import evaluate_tasks

    before = [] if chosen.kept is None else list(chosen.kept.runs)
    if len(before) >= chosen.planned.num_episodes:
        ready()
        return before
    tasks, model, options = chosen.taskset.tasks, chosen.model, chosen.options
    played = await evaluate_tasks(
        tasks, model, options, run_id=chosen.run_id, on_ready=ready, on_episode=progress
    )
    return before + played


def _evaluated(chosen: _Chosen, duration_s: float, rows: Sequence[EpisodeRow]) -> EvaluatedRun:
    """Of the episodes that have ended."""
    planned = chosen.planned
    return EvaluatedRun(
        run_id=chosen.run_id,
        taskset=planned.taskset,
        taskset_digest=planned.taskset_digest,
        source_digest=planned.source_digest,
        model=chosen.model.name,
        versions=(),
        group=planned.group,
        sampling=planned.sampling,
        duration_s=duration_s,
        episodes=tuple(sorted(rows, key=lambda row: row.episode_id)),
        num_planned=planned.num_episodes,
    )


def _interrupted(evaluated: EvaluatedRun, path: Path) -> None:
    said = f"{evaluated.run_id}: {evaluated.shortfall or 'interrupted'}"
    where = f"; read them in: {path}; {way_back(evaluated.run_id)}" if evaluated.episodes else ""
    human().print(f"\n{said}{where}", markup=False, soft_wrap=True)


@contextmanager
def _opened(asked: Path | None, run_id: str) -> Iterator[tuple[Path, TextIO]]:
    """The file for what is said; its folder is there. One that stays empty is removed."""
    path = asked or FOLDER / run_id / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    try:
        with path.open("a", encoding="utf-8") as lines:
            yield path, lines
    finally:
        if is_new and not path.stat().st_size:
            path.unlink()
            if asked is None:
                path.parent.rmdir()


def _check_place(path: Path | None) -> None:
    if path is None:
        return
    if path.exists() and path.suffix != ".jsonl":
        raise PlayRefused(
            f"--trajectories {path} exists and is no .jsonl file", "name another: it would be replaced"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"--trajectories {path}: its folder cannot be made: {error.strerror}"
        raise PlayRefused(why, "name a file in a folder of yours") from error


def _asked(given: Sources, without: str = "max_concurrent") -> RunFile:
    """Checked as a run is that the platform plays; who plays is checked later. without: a path whose rule
    holds there alone: a group is planned there as a whole. Raises RunConfigInvalid."""
    others = given.without("policy.model", without)
    return others.run(Purpose.EVAL, {**eval_defaults(given), "policy.model": "agent"})


def _check(given: Sources, external: ExternalFlags, report: Report, choice: TaskChoice) -> None:
    if choice.remote and not external.gateway:
        raise PlayRefused(
            "--remote is for models that the platform plays", "leave it out: this agent plays here"
        )
    if choice.deployed:
        raise PlayRefused(
            "--deployed is for models that the platform plays", "leave it out: this agent plays here"
        )
    unused = [path for path in given.values if path not in _USED]
    if unused:
        raise PlayRefused(
            f"{given.say(unused[0])} is for models that the platform plays",
            "leave it out: this agent plays here",
        )
    if report.timeout_s != Report().timeout_s:
        raise PlayRefused("--timeout-s is for models that the platform plays", "end this one with Ctrl-C")
    if report.detach:
        raise PlayRefused("--detach leaves a run to the platform", "leave it out: this agent plays here")
    if not given.value("taskset"):
        raise PlayRefused("nothing to evaluate: TASKS missing", "upcycle eval tasks.py claude")
    _check_place(external.trajectories)


def _sampling(given: Sources, asked: RunFile) -> dict[str, Any]:
    """What was given; None for the rest, which has other defaults than a run: they are those of models of
    others, which answer at length. A registered model keeps those of a run."""
    chosen = {name: given.has(f"sampling.{name}") for name in _SAMPLING}
    return {name: getattr(asked.sampling, name) if chosen[name] else None for name in _SAMPLING}


def _options(given: Sources, asked: RunFile, sampling: dict[str, Any], runtime: str) -> "ExternalOptions":
    from upcycle.external.evaluating import MAX_CONCURRENT, ExternalOptions
    from upcycle.playing.budgets import limits_of
    from upcycle.playing.runtime_hosts import runtime_of

    limits = limits_of({name: sampling[name] for name in _SAMPLING[2:]})
    at_once = _asked(given, without="group_size").max_concurrent
    return ExternalOptions(
        asked.group_size,
        MAX_CONCURRENT if at_once is None else at_once,
        limits,
        runtime=runtime_of(runtime) if runtime else None,
    )


async def _model(
    given: Sources, external: ExternalFlags, sampling: dict[str, Any], taskset: "Taskset"
) -> "ExternalModel":
    from upcycle.external.asking import named_agent
    from upcycle.external.gateway import gateway_model
    from upcycle.external.naming import external_model

    model = given.value("policy.model") or ""
    if is_command(external.agent):
        return await agent_of_command(external.agent, model, taskset, sampling, external.gateway)
    if model and external.agent:
        raise PlayRefused(
            f"--agent {external.agent} and MODEL {model} both name the agent", "give one of them"
        )
    name = external.agent or model
    if not name:
        raise PlayRefused("there is no agent: MODEL missing", "upcycle eval tasks.py claude")
    chosen = {key: sampling[key] for key in _SAMPLING[:2]}
    if external.gateway:
        return await gateway_model(name, **chosen)
    return external_model(await named_agent(name), **chosen)


async def _taskset(asked: RunFile) -> "Taskset":
    from upcycle.cli.tasksets import load_source
    from upcycle.tasks import Taskset

    source = load_source(asked.taskset, asked.taskset_name)
    for taskset in source.defined:
        if taskset.name == source.name:
            return taskset
    return await Taskset.from_api(source.name)


def _dry_run(taskset: "Taskset", as_json: bool) -> int:
    name, split, tasks, digest = taskset.name, taskset.split, len(taskset.tasks), taskset.digest
    if as_json:
        print_json("dry_run", {"taskset": name, "split": split, "tasks": tasks, "digest": digest})
    else:
        human().print(f"{name}: {amount(tasks, 'task')}, split {split}, {digest[:12]}", markup=False)
    return Exit.OK


def _launched(chosen: _Chosen, as_json: bool) -> None:
    from upcycle.runtimes import where_of

    run_id, planned, model, options = chosen.run_id, chosen.planned, chosen.model, chosen.options
    digest = planned.source_digest
    if as_json:
        names = {"run_id": run_id, "taskset": planned.taskset, "agent": model.name, "source_digest": digest}
        print_json("launch", {**names, "group": options.group, "max_concurrent": options.max_concurrent})
    source = f", source {digest[:12]}" if digest else ""
    where = where_of(options.runtime)
    kept = "its calls are recorded" if isinstance(model, CommandModel) else "evaluation only"
    said = (
        f"run {run_id} on {planned.taskset}{source}: {model.name}, in this process, {where}, "
        f"{options.max_concurrent} at once, {kept}"
    )
    human().print(said, markup=False, soft_wrap=True)
    if chosen.kept is not None:
        before, failed = len(chosen.kept.runs), chosen.kept.num_failed
        again = f", {failed} without a reward are played again" if failed else ""
        said = f"{before} of {planned.num_episodes} episodes were graded before{again}"
        human().print(said, markup=False, soft_wrap=True)
    if chosen.is_remote:
        human().print("--remote: the platform's gateway answers; the episodes play here", markup=False)
