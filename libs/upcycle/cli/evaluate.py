"""`upcycle eval`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.cli.anchor_text import anchor_json, anchor_lines, anchor_of
from upcycle.cli.before_work import before_work
from upcycle.cli.best_of import NO_BEST_OF, BestOfFlags, Selector, best_of_json, best_of_lines
from upcycle.cli.default_model import default_model
from upcycle.cli.eval_external_flags import NO_EXTERNAL, ExternalFlags
from upcycle.cli.eval_flags import (
    NO_FOLLOW,
    PLAIN,
    FollowFlags,
    Report,
    UnclearEvaluation,
    require_command,
    unmet_bars,
)
from upcycle.cli.exits import Exit
from upcycle.cli.failures_text import FailureExample, failure_examples, failures_json, failures_text
from upcycle.cli.output import human, print_json
from upcycle.cli.report_text import report_lines
from upcycle.cli.run_flags import NO_CONFIG, ConfigFlags, eval_defaults, flag_class, sources_of
from upcycle.cli.task_choice import NO_CHOICE, TaskChoice
from upcycle.errors import DefinitionError
from upcycle.evaluation import read_results, runs_of
from upcycle.local_runs import is_local_run
from upcycle.model_names import named_version
from upcycle.platform import Platform, PlatformNotFound
from upcycle.reporting.best_of import BestOfReport
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.reporting.reading import read_evaluation
from upcycle.reporting.report import report_of
from upcycle.results import Coverage, coverage_of
from upcycle.run_client import completed
from upcycle.run_config import Purpose
from upcycle.run_config.reading import Given, RunFile, Sources
from upcycle.run_config.wire import spec_to_wire
from upcycle.tasks import plain_name
from upcycle.wire import usage_of
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run


EvalFlags: Any = flag_class(Purpose.EVAL, "EvalFlags")
NO_FLAGS: Final = EvalFlags()
_STAND_INS: Final = {"policy.model": "model", "taskset": "taskset"}


async def evaluate(
    tasks: str | None = None,
    model: str | None = None,
    *,
    benchmark: str = "",
    flags: EvalFlags = NO_FLAGS,
    config: ConfigFlags = NO_CONFIG,
    report: Report = PLAIN,
    external: ExternalFlags = NO_EXTERNAL,
    choice: TaskChoice = NO_CHOICE,
    follow: FollowFlags = NO_FOLLOW,
    best: BestOfFlags = NO_BEST_OF,
) -> int:
    """Run every task of TASKS with MODEL and report reward and success.

    Ctrl-C leaves a run of the platform going: come back with `--attach RUN`.

    - four attempts at each task, with pass@k: `upcycle eval tasks.py shop --group 4`
    - the best of four by a reward model: `upcycle eval tasks.py shop --best-of 4 --select orm:FOLDER`
    - an agent of others, here, with your own key: `upcycle eval tasks.py claude --limit 20`
    - for `upcycle compare`: `upcycle eval --benchmark sheet-50 shop --json > shop.json`

    :param tasks: a tasks file (.py, .json, .jsonl, .csv), or the name of a registered taskset.
    :param model: slug of the model, or SLUG@v12, by default the only one of the platform; or claude, openai,
        gemini, openai_compatible, each with an optional #MODEL, or the URL of an OpenAI-compatible server,
        which play here with your own key.
    :param benchmark: tasks that ship with upcycle, in the place of TASKS: sheet-50, repair-30, autonomy-10.
    """
    report.check()
    choice.check()
    best.check(report)
    given = _given(benchmark, tasks, model, flags, config)
    if follow.run and is_local_run(follow.run):
        return await _go_on(follow, best.with_group(given), external, report, choice, best)
    if follow.run:
        return await _follow_again(follow, given, report, best)
    return await _evaluate(best.with_group(given), external, report, choice, best)


def _given(
    benchmark: str, tasks: str | None, model: str | None, flags: EvalFlags, config: ConfigFlags
) -> Sources:
    """What arguments, flags and file say together. Raises UnclearEvaluation and what `sources_of` raises."""
    from upcycle.cli.benchmarks import with_benchmark

    tasks, model = with_benchmark(benchmark, tasks, model)
    arguments = {"taskset": ("TASKS", tasks), "policy.model": ("MODEL", model)}
    return sources_of(Purpose.EVAL, flags, config, arguments=arguments)


async def _evaluate(
    given: Sources, external: ExternalFlags, report: Report, choice: TaskChoice, best: BestOfFlags
) -> int:
    if external.is_asked(given):
        from upcycle.cli.eval_external import evaluate_external

        return await evaluate_external(given, external, report, choice, best)
    return await _evaluate_on_platform(await _with_model(given, report), choice, report, best)


async def _go_on(
    follow: FollowFlags,
    given: Sources,
    external: ExternalFlags,
    report: Report,
    choice: TaskChoice,
    best: BestOfFlags,
) -> int:
    """An evaluation in one process: what its file has no reward for is played."""
    from upcycle.cli.eval_external import evaluate_external
    from upcycle.external.resuming import file_to_resume

    file_to_resume(follow.run, external.trajectories)
    require_command(follow, is_whole=bool(given.value("taskset")) and external.is_asked(given))
    return await evaluate_external(given, external, report, choice, best, follow.resume)


async def _with_model(given: Sources, report: Report) -> Sources:
    """With the only model of the platform where none was named; a dry run plays none, and asks for none.
    Raises UnclearEvaluation where no tasks were named."""
    is_named = given.value("policy.model")
    if not given.value("taskset"):
        if given.file:
            given.run(Purpose.EVAL, _STAND_INS)  # a misspelt field of the file may be what is missing
        missing = "TASKS" if is_named else "TASKS and MODEL"
        raise UnclearEvaluation(f"nothing to evaluate: {missing} missing", "give TASKS MODEL, or a --config")
    if is_named:
        return _with_version(given)
    model = "not-named" if report.dry_run else await default_model()
    return replace(given, values={**given.values, "policy.model": Given(model, "MODEL")})


def _with_version(given: Sources) -> Sources:
    """With the version that the name of the model says. Raises UnknownName; UnclearEvaluation for two."""
    name, where = given.value("policy.model"), given.say("policy.model")
    named = named_version(name)
    chosen, pinned = named.version, given.value("policy.pinned_version")
    if pinned not in (None, chosen) and chosen is not None:
        raise UnclearEvaluation(
            f"{where} {name} and {given.say('policy.pinned_version')} {pinned} name two versions", "give one"
        )
    values = {**given.values, "policy.model": Given(named.model, where)}
    if chosen is not None:
        values["policy.pinned_version"] = Given(chosen, where)
    return replace(given, values=values)


async def _evaluate_on_platform(given: Sources, choice: TaskChoice, report: Report, best: BestOfFlags) -> int:
    asked = given.run(Purpose.EVAL, eval_defaults(given))
    choice.check_whole(asked.trainable)
    selector = await best.selector()
    if selector is not None:
        most = given.value("sampling.max_tokens_per_episode")  # the default may be above the model's context
        selector.check(asked.run.group_size, most, "this evaluation")
    if report.dry_run:
        return await _dry_run(asked, choice, report.as_json)
    return await _submit(asked, choice, report, selector)


async def _submit(asked: RunFile, choice: TaskChoice, report: Report, selector: Selector | None) -> int:
    from upcycle.cli.tasksets import load_source
    from upcycle.cli.tool_limits import refuse_long_tools
    from upcycle.run_client import require_model, submit_run

    source = await choice.source_of(load_source(asked.taskset, asked.taskset_name))
    refuse_long_tools(source, asked.run.episode_deadline_s)
    model = asked.policy.model
    with _naming_agents(model):
        connected = Platform()
    async with connected as platform:
        with before_work():
            with _naming_agents(model):
                await require_model(platform, model)
            name = await source.register(platform)
            with _naming_agents(model):
                run = await submit_run(platform, spec_to_wire(replace(asked.run, taskset=name)))
        _launched(run, report.as_json)
        if not report.detach:
            return await _followed(platform, run.run_id, report, selector)
        if not report.as_json:
            print(run.run_id)
        return Exit.OK


@contextmanager
def _naming_agents(model: str) -> Iterator[None]:
    """A model that no platform knows may be a mistyped agent of others: the refusal names those too."""
    from upcycle.external.naming import agents_hint
    from upcycle.rpc import RemoteNotFound

    try:
        yield
    except PlatformNotFound as error:
        said = f"model {model!r} plays on a platform, and {error.message}"
        raise PlatformNotFound(said, f"{error.hint}; {agents_hint(model)}") from error
    except RemoteNotFound as error:
        said = f"{error.message}; {agents_hint(model)}"
        raise RemoteNotFound(error.what, error.code, error.reason, said, error.failure_kind) from error


async def _follow_again(follow: FollowFlags, given: Sources, report: Report, best: BestOfFlags) -> int:
    """Another command submitted the run."""
    from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL
    from upcycle.api.taskset.v1.service_pb2 import ResumeRunRequest
    from upcycle.cli.runs import resolve_run

    if given.values:
        raise UnclearEvaluation(
            f"a submitted run keeps what it has: {given.say(next(iter(given.values)))} was given too",
            "leave out everything that says what to evaluate",
        )
    selector = await best.selector()
    async with Platform() as platform:
        with before_work():
            run_id = await resolve_run(platform, follow.run)
            run = (await read_results(platform, run_id)).run
        if run.spec.purpose != PURPOSE_EVAL:
            raise UnclearEvaluation(f"{run_id} trains", f"follow it with `upcycle why {run_id}`")
        if selector is not None:
            selector.check(run.spec.group_size, None, run_id)
        if follow.resume:
            with before_work():
                await platform.tasksets.ResumeRun(ResumeRunRequest(run_id=run_id), timeout=10)
        _launched(run, report.as_json)
        return await _followed(platform, run_id, report, selector)


async def _followed(platform: Platform, run_id: str, report: Report, selector: Selector | None) -> int:
    """Wait for the end of an evaluation and report; the exit status that it deserves."""
    from upcycle.cli.eval_follower import follow_evaluation

    try:
        run = await follow_evaluation(platform, run_id, timeout_s=report.timeout_s)
    except BaseException:  # Ctrl-C among them
        again = f"upcycle eval --attach {run_id} follows it, upcycle runs cancel {run_id} ends it"
        human().print(f"\nthe run may go on: {again}", markup=False, soft_wrap=True)
        raise
    results = await read_results(platform, run.run_id)
    evaluated = await read_evaluation(platform, run.run_id, results)
    drawn_by = await _drawn(platform, run, report.as_json) if run.spec.trainable else ""
    episodes = runs_of(results)
    chosen = None
    if selector is not None and evaluated.episodes:
        chosen = await selector.choose_on_platform(platform, evaluated)
    status = _say(run, coverage_of(episodes), report, failure_examples(episodes), evaluated, chosen)
    if drawn_by and not report.as_json:
        print(drawn_by)
    return status


async def _drawn(platform: Platform, run: "Run", as_json: bool) -> str:
    """Which running training run draws from this evaluation, in one line."""
    from upcycle.cli.drawn_by import drawing_run, drawn_text

    found = await drawing_run(platform, run)
    if as_json:
        print_json("drawn_by", {"run_id": found.run_id if found is not None else ""})
    return drawn_text(run, found)


async def _dry_run(asked: RunFile, choice: TaskChoice, as_json: bool) -> int:
    """What would be played: all tasksets of a file, a registered one, or the chosen tasks of one. Refuses
    what the run would be refused for, as far as that is known here."""
    from pathlib import Path

    from upcycle.cli.tasksets import NO_TASKSET, TasksetSource, load_source, load_tasksets
    from upcycle.cli.tool_limits import refuse_long_tools
    from upcycle.tasks import Taskset
    from upcycle.tasks_files import TASKS_FILES

    source, name = asked.taskset, asked.taskset_name
    if choice.is_asked or choice.deployed or name or not source.endswith(TASKS_FILES):
        found = await choice.source_of(load_source(source, name))
    else:
        found = TasksetSource("", tuple(load_tasksets(Path(source)).values()))
        if not found.defined:
            raise DefinitionError(f"{source} defines no taskset", NO_TASKSET)
    refuse_long_tools(found, asked.run.episode_deadline_s)
    shown = list(found.defined) or [await Taskset.from_api(found.name)]
    if choice.is_asked:
        shown = [one for one in shown if one.name == found.name]
    for taskset in shown:
        tasks, split, digest = len(taskset.tasks), taskset.split, taskset.digest
        many = amount(tasks, "task")
        if as_json:
            print_json("dry_run", {"taskset": taskset.name, "split": split, "tasks": tasks, "digest": digest})
        else:
            human().print(f"{taskset.name}: {many}, split {split}, {digest[:12]}", markup=False)
    return Exit.OK


def _launched(run: "Run", as_json: bool) -> None:
    if as_json:
        print_json("launch", run)
    taskset = plain_name(run.spec.taskset)
    source = f", source {run.source_digest[:12]}" if run.source_digest else ""
    human().print(
        f"run {run.run_id} on {taskset}{source} (`upcycle why {run.run_id}` if it waits)", markup=False
    )


def _say(
    run: "Run",
    coverage: Coverage,
    report: Report,
    failures: Sequence[FailureExample] = (),
    evaluated: EvaluatedRun | None = None,
    chosen: BestOfReport | None = None,
) -> int:
    """Print the result; the exit status that it deserves."""
    if report.as_json:
        print_json("done", {**_done(run, coverage, failures, evaluated), **best_of_json(chosen)})
    else:
        _print_report(run, coverage, failures, evaluated)
        for line in best_of_lines(chosen):
            print(line)
    if not completed(run):
        why = run.failure or "cancelled"
        human().print(f"the run did not complete: {why}", style="red", markup=False, soft_wrap=True)
        return Exit.FAILED
    unmet = unmet_bars(coverage, report, chosen)
    for bar in unmet:
        human().print(bar, style="red", markup=False, soft_wrap=True)
    return Exit.GATE_UNMET if unmet else Exit.OK


def _done(
    run: "Run", coverage: Coverage, failures: Sequence[FailureExample], evaluated: EvaluatedRun | None
) -> dict[str, Any]:
    """The fields of the line `done`: `upcycle compare` reads `evaluation`."""
    from upcycle.cli.output import fields_of

    report = report_of(evaluated) if evaluated is not None else None
    anchor = anchor_of(evaluated) if evaluated is not None else None
    return {
        **fields_of(run),
        "coverage": {**asdict(coverage), "share": coverage.share},
        "failures": failures_json(failures),
        "report": report.to_json() if report is not None else None,
        "evaluation": evaluated.to_json() if evaluated is not None else None,
        **anchor_json(anchor),
    }


def _print_report(
    run: "Run", coverage: Coverage, failures: Sequence[FailureExample], evaluated: EvaluatedRun | None
) -> None:
    reward = f"{run.reward_mean:.3f}" if coverage.num_graded else "–"
    success = f"{coverage.success_rate:.1%}" if coverage.num_graded else "–"
    print(f"{run.run_id}: success {success}, reward {reward}, {coverage}")
    print(usage_of(run.usage))
    report = report_of(evaluated) if evaluated is not None else None
    for line in report_lines(report, evaluated) if report is not None and evaluated is not None else ():
        print(line)
    for line in anchor_lines(anchor_of(evaluated)) if evaluated is not None else ():
        print(line)
    if failures:
        print(failures_text(failures))
    print(f"read them with: upcycle trajectories list --run {run.run_id}")
