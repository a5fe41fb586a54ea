"""`upcycle eval`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.run_flags import NO_CONFIG, ConfigFlags, eval_defaults, flag_class, sources_of
from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.run_client import completed, scores
from upcycle.run_config import Purpose
from upcycle.run_config.wire import spec_to_wire
from upcycle.tasks import plain_name
from upcycle.wire import usage_of

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run


EvalFlags: Any = flag_class(Purpose.EVAL, "EvalFlags")
NO_FLAGS: Final = EvalFlags()


class UnclearEvaluation(UpcycleError, ValueError):
    """The options do not say what to evaluate."""

    kind = "unclear_evaluation"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to do with the result."""

    min_success: float | None = None
    """exit with 3 when the success rate is lower."""
    timeout_s: float = 3600.0
    """give up watching after so many seconds."""
    detach: bool = False
    """print the run id and leave."""
    dry_run: bool = False
    """load and validate the tasks, submit nothing."""
    as_json: JsonFlag = False
    """JSON lines: `launch`, with --trainable `drawn_by`, then `done`."""


async def evaluate(
    tasks: str | None = None,
    model: str | None = None,
    *,
    flags: EvalFlags = NO_FLAGS,
    config: ConfigFlags = NO_CONFIG,
    report: Report = Report(),
) -> int:
    """Run every task of TASKS with MODEL and report reward and success.

    :param tasks: a tasks file (.py, .json, .jsonl), or the name of a registered taskset.
    :param model: slug of the model.
    """
    from upcycle.cli.tasksets import load_source
    from upcycle.run_client import follow_run, submit_run

    arguments = {"taskset": ("TASKS", tasks), "policy.model": ("MODEL", model)}
    given = sources_of(Purpose.EVAL, flags, config, arguments=arguments)
    missing = [name for path, (name, _) in arguments.items() if not given.value(path)]
    if missing:
        raise UnclearEvaluation(
            f"nothing to evaluate: {' and '.join(missing)} missing", "give TASKS MODEL, or a --config"
        )
    asked = given.run(Purpose.EVAL, eval_defaults(given))
    if report.dry_run:
        return _dry_run(asked.taskset, report.as_json)
    source = load_source(asked.taskset, asked.taskset_name)
    async with Platform() as platform:
        name = await source.register(platform)
        run = await submit_run(platform, spec_to_wire(replace(asked.run, taskset=name)))
        _launched(run, report.as_json)
        if report.detach:
            return Exit.OK
        run = await follow_run(platform, run.run_id, CountsLine(), timeout_s=report.timeout_s)
        drawn_by = await _drawn(platform, run, report.as_json) if asked.trainable else ""
    status = _report(run, report.min_success, report.as_json)
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


def _dry_run(source: str, as_json: bool) -> int:
    from pathlib import Path

    from upcycle.cli.tasksets import load_tasksets

    for taskset in load_tasksets(Path(source)).values():
        name, split, tasks, digest = taskset.name, taskset.split, len(taskset.tasks), taskset.digest
        if as_json:
            print_json("dry_run", {"taskset": name, "split": split, "tasks": tasks, "digest": digest})
        else:
            human().print(f"{name}: {tasks} tasks, split {split}, {digest[:12]}")
    return Exit.OK


def _launched(run: "Run", as_json: bool) -> None:
    if as_json:
        print_json("launch", run)
    taskset = plain_name(run.spec.taskset)
    human().print(f"run [bold]{run.run_id}[/bold] on {taskset} (`upcycle why {run.run_id}` if it waits)")


class CountsLine:
    """One line per change: a bar for a terminal, plain text elsewhere."""

    def __init__(self) -> None:
        self._console = human()
        self._last = ""

    def __call__(self, run: "Run") -> None:
        counts, (reward, success, _) = run.counts, scores(run)
        line = (
            f"{counts.settled}/{counts.requested} settled · reward {reward} · "
            f"success {success} · failed {counts.by_state.get('failed', 0)}"
        )
        if line != self._last:
            self._last = line
            self._console.print(line, end="\r" if self._console.is_terminal else "\n")


def _report(run: "Run", min_success: float | None, as_json: bool) -> int:
    if as_json:
        print_json("done", run)
    else:
        reward, success, episodes = scores(run)
        print(f"{run.run_id}: success {success}, reward {reward}, {episodes}")
        print(usage_of([run.usage]))
        print(f"read them with: upcycle trajectories list --run {run.run_id}")
    if not completed(run):
        why = run.failure or "cancelled"
        human().print(f"the run did not complete: {why}", style="red", markup=False, soft_wrap=True)
        return Exit.FAILED
    if min_success is not None and run.success_rate < min_success:
        human().print(f"success {scores(run)[1]} is below --min-success {min_success:.1%}")
        return Exit.GATE_UNMET
    return Exit.OK
