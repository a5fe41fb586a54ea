"""`upcycle train`."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import Parameter

from upcycle.cli.before_work import before_work
from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.run_flags import NO_CONFIG, ConfigFlags, flag_class, sources_of
from upcycle.cli.sft import NO_SFT, SFT_RATE, SftCall, SftOptions, SftRefused, train_sft
from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.run_client import completed, scores
from upcycle.run_config import Gate, Purpose, RunSpec, Training, checked
from upcycle.run_config.reading import RunFile, Sources, of_sessions_alone, without_tasks_of_settings
from upcycle.run_config.wire import spec_to_wire
from upcycle.tasks import plain_name
from upcycle.tasks_files import TASKS_FILES
from upcycle.wire import usage_of
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.cli.tasksets import TasksetSource

TrainFlags: Any = flag_class(Purpose.TRAIN, "TrainFlags")
NO_FLAGS: Final = TrainFlags()
_LOOK_BACK: Final = 50
_OF_SOURCES: Final = ("source_runs", "sessions", "sessions_idle_s", "no_sampling", "training.no_step_groups")
_OF_SFT: Final = ("training.steps", "training.epochs", "training.learning_rate", "training.seed")
_STAND_INS: Final = {"policy.model": "model", "taskset": "taskset"}
_OF_FIRST_SOURCE: Final = "the taskset of the first source"


class UnclearTraining(UpcycleError, ValueError):
    """The options do not say what to train, or say two things."""

    kind = "unclear_training"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How to follow the run."""

    attach: str | None = None
    """follow this run (or `last`, the newest training run) instead of starting one."""
    detach: bool = False
    """print the run id and leave."""
    timeout_s: float = 86_400.0
    """give up watching after so many seconds; the run goes on."""
    as_json: JsonFlag = False
    """JSON lines: `launch`, `gate_power`, `progress`, `step`, `checkpoint`, `alarm`…, `done`, `audit`."""


async def train(
    model: str | None = None,
    *,
    flags: TrainFlags = NO_FLAGS,
    deployed: str = "",
    audit: str = "",
    config: ConfigFlags = NO_CONFIG,
    sft: SftOptions = NO_SFT,
    view: View = View(),
) -> int:
    """Train MODEL with online GRPO: roll out, grade, step, publish, until the steps are done.

    With --from it begins with what evaluations sampled already, with --sessions with graded sessions of your
    own agent: whole groups, each at most once; what does not fit is named. With --sft or --sft-from it does
    supervised fine-tuning (SFT) on conversations instead, and makes the last checkpoint head.

    Shows its curves until it is over. Ctrl-C leaves the run going: come back with `--attach RUN`;
    `upcycle runs pause | resume | stop RUN` steer it.

    - GRPO, promoted by a gate: `upcycle train shop --taskset tasks.py --gate shop-held-out --steps 50`
    - a run as a file; flags win: `upcycle train --config run.toml --steps 10`
    - sessions of your agent: `upcycle train shop --sessions group=nightly --steps 20`
    - from demonstrations: `upcycle train shop --sft demonstrations.jsonl --epochs 2`

    :param model: slug of the model; its weights advance in place.
    :param deployed: source digest that `upcycle deploy` printed: the environment of a tasks file, also that
        of its gate, is played as it was sent.
    :param audit: taskset of split audit that is opened once, when the run is over and its gate has decided:
        head plays it beside the version that was head before the run.
    """
    _refuse_lone_options(sft)
    asked = sources_of(Purpose.TRAIN, flags, config, arguments={"policy.model": ("MODEL", model)})
    given = without_tasks_of_settings(asked)
    _refuse_unfit(given, view, sft, deployed=deployed, audit=audit)
    if view.attach is not None:
        return await _follow_again(view.attach, view)
    model = _model_to_train(given, sft, config.config)
    if sft.is_asked:
        return await train_sft(model, sft, _sft_call(given, view))
    return await _trained(_run(given), deployed, audit, view)


def _refuse_unfit(given: Sources, view: View, sft: SftOptions, *, deployed: str, audit: str) -> None:
    """Raises UnclearTraining and SourcesRefused for options that do not go with what is asked."""
    plays_file = given.value("taskset") or not given.value("sessions")
    if deployed and (view.attach is not None or sft.is_asked or given.value("source_runs") or not plays_file):
        raise UnclearTraining("--deployed is for a run that plays a tasks file", "leave it out")
    if audit and (view.attach is not None or view.detach or sft.is_asked):
        raise UnclearTraining("--audit is for a run that is started and followed here", "leave it out")
    gate = given.value("gate.taskset") or ""
    if gate.endswith(TASKS_FILES):
        raise UnclearTraining(
            f"{given.say('gate.taskset')} is {gate}, a file",
            "name a held-out taskset of the tasks file, or a registered one",
        )
    if view.attach is not None:
        _refuse_sources(given)


async def _follow_again(run: str, view: View) -> int:
    async with Platform() as platform:
        return await _follow(platform, await _attached(platform, run), view)


async def _trained(run: RunFile, deployed: str, audit: str, view: View) -> int:
    """Submit a run of the platform and follow it; the exit status that it deserves."""
    from upcycle.cli.train_audit import audited, planned_audit
    from upcycle.run_client import require_model

    source, model = _source(run, deployed), run.policy.model
    async with Platform() as platform:
        with before_work():
            await require_model(platform, model)
            spec = await _registered(platform, run, source)
            plan = await planned_audit(platform, model, audit) if audit else None
        run_id = await _launched(platform, spec, view)
        if view.detach:
            return Exit.OK
        status = await _follow(platform, run_id, view)
        if plan is not None:
            await audited(platform, run_id, plan, timeout_s=view.timeout_s, as_json=view.as_json)
        return status


def _run(given: Sources) -> RunFile:
    """The taskset of a run that begins with evaluations is theirs, unless it was asked for here. One of
    recorded sessions alone needs none."""
    if not given.value("source_runs"):
        return given.run(Purpose.TRAIN, of_sessions_alone(given))
    settings = tuple(path for path in ("taskset", "taskset_name") if path not in given.values)
    return given.without(*settings).run(Purpose.TRAIN, {"taskset": _OF_FIRST_SOURCE})


def _source(run: RunFile, deployed: str) -> "TasksetSource | None":
    """What the run plays; None where its first source says so, or nothing is played."""
    from upcycle.cli.tasksets import load_source
    from upcycle.cli.tool_limits import refuse_long_tools

    if run.taskset in ("", _OF_FIRST_SOURCE):
        return None
    source = load_source(run.taskset, run.taskset_name, trains=True)
    if deployed:
        source = source.as_sent(deployed)
    refuse_long_tools(source, run.run.episode_deadline_s)
    return source


def _model_to_train(given: Sources, sft: SftOptions, config: Path | None) -> str:
    """Raises UnclearTraining where the model, or what it would train on, is missing; RunConfigInvalid where
    something else is wrong, too."""
    model: str | None = given.value("policy.model")
    if model and (sft.is_asked or any(given.value(path) for path in ("taskset", "source_runs", "sessions"))):
        return model
    if config and not sft.is_asked:
        given.run(Purpose.TRAIN, _STAND_INS)  # a misspelt field of the file may be what is missing
    raise UnclearTraining(
        "nothing to train on" if model or not config else f"{config}: policy.model is missing",
        "give MODEL with --taskset, --from, --sessions, --sft or --sft-from (MODEL before --from), a "
        "--config that names them, or --attach RUN",
    )


def _refuse_lone_options(sft: SftOptions) -> None:
    """Raises UnclearTraining for options of SFT beside no conversations: a run would ignore them."""
    if sft.is_asked:
        return
    changed = [one.name for one in fields(sft) if getattr(sft, one.name) != getattr(NO_SFT, one.name)]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UnclearTraining(
            f"{flags}: for SFT, and no conversations are named",
            "name them with --sft FILE or --sft-from RUN, or leave it out",
        )


def _refuse_sources(given: Sources) -> None:
    """Raises SourcesRefused for what belongs to the start of a run."""
    from upcycle.errors import SourcesRefused

    if any(path in given.values for path in _OF_SOURCES):
        raise SourcesRefused(
            "--attach follows a run that was started before: --from, --sessions, --sessions-idle-s, "
            "--no-sampling and --no-step-groups belong to its start",
            "leave them out, or leave --attach out and start a new run",
        )


def _sft_call(given: Sources, view: View) -> SftCall:
    """Raises SftRefused for options that only GRPO over a taskset takes."""
    other = [one.where for path, one in given.values.items() if path not in (*_OF_SFT, "policy.model")]
    if other:
        raise SftRefused(
            f"{', '.join(other)}: for GRPO over a taskset, not for SFT",
            "leave that out, or --sft and --sft-from; with `TrainingClient.step` each step brings its own "
            "learning_rate",
        )
    if view.detach:
        raise SftRefused("--detach: this process drives SFT step by step", "leave --detach out")
    asked = {path.partition(".")[2]: given.value(path) for path in _OF_SFT if path in given.values}
    epochs = asked.pop("epochs", 1)  # the one place where steps may cut epochs short
    training = checked(Training, asked, lambda name: given.say(f"training.{name}"))
    checked(Training, {"epochs": epochs}, lambda name: given.say(f"training.{name}"))
    return SftCall(
        steps=asked.get("steps"),
        epochs=epochs,
        seed=training.seed,
        learning_rate=asked.get("learning_rate", SFT_RATE),
        timeout_s=view.timeout_s,
        as_json=view.as_json,
    )


async def _registered(platform: Platform, run: RunFile, source: "TasksetSource | None") -> RunSpec:
    """The run with names that the platform knows: its taskset, and the run ids of its sources. Without a
    limit of steps it follows the revisions of a taskset that a file defines."""
    from upcycle.cli.mixes import registered_mix
    from upcycle.cli.sources import resolve
    from upcycle.cli.tracked_sets import with_benchmarks
    from upcycle.train.running import taskset_of

    evaluations = tuple(await resolve(platform, run.policy.model, run.source_runs))
    exact = run.training is not None and not run.training.is_standing
    if source is not None:
        name = await source.register(platform, exact=exact)
    else:
        name = await taskset_of(platform, evaluations[0]) if evaluations else ""
    track = await with_benchmarks(platform, run.track)
    mix = await registered_mix(platform, run.mix, exact=exact)
    return replace(run.run, taskset=name, source_runs=evaluations, track=track, mix=mix)


async def _launched(platform: Platform, spec: RunSpec, view: View) -> str:
    from upcycle.cli.mixes import gate_line
    from upcycle.cli.sources import begun_lines
    from upcycle.run_client import submit_run

    with before_work():
        run = await submit_run(platform, spec_to_wire(spec))
    taskset = plain_name(run.spec.taskset) or "recorded sessions"
    for line in begun_lines(run):
        human().print(line, markup=False, soft_wrap=True)
    if view.as_json:
        print_json("launch", run)
    elif view.detach:
        print(run.run_id)
    else:
        start = await _start_of(platform, run.spec.policy.model)
        human().print(f"run {run.run_id} trains {run.spec.policy.model} on {taskset}{start}", markup=False)
    if spec.gate is not None:
        await _say_power(platform, spec.gate, view)
    if line := gate_line(spec):
        human().print(line, style="yellow", markup=False, soft_wrap=True)
    return run.run_id


async def _say_power(platform: Platform, gate: Gate, view: View) -> None:
    """What the held-out set of the gate can show; the run goes on meanwhile."""
    from upcycle.cli.gate_power import power_of

    found = await power_of(platform, gate)
    if view.as_json:
        at = {f"{100 * gain:g}": round(chance, 3) for gain, chance in found.at.items()}
        print_json("gate_power", {"points": at, "tasks": found.num_tasks, "warning": found.warning()})
        return
    human().print(found.line(), markup=False, soft_wrap=True)
    if warning := found.warning():
        human().print(f"gate: {warning}", style="yellow", markup=False, soft_wrap=True)


async def _start_of(platform: Platform, model: str) -> str:
    """Which weights a run begins with, as the end of a sentence; empty while the registry does not say."""
    import grpc

    from upcycle.api.registry.v1.service_pb2 import GetModelRequest

    try:
        found = (await platform.registry.GetModel(GetModelRequest(model=model), timeout=5)).model
    except grpc.aio.AioRpcError:
        return ""
    is_behind = found.newest_version > found.head_version
    newer = f"; the newest checkpoint, v{found.newest_version}, is not head" if is_behind else ""
    return f", from v{found.head_version} (head{newer})"


async def _attached(platform: Platform, run: str) -> str:
    """The id of the training run that a person means; `last` is the newest one, whatever was evaluated since.

    Raises UnclearTraining for a run that does not train.
    """
    from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest, ListRunsRequest
    from upcycle.cli.runs import resolve_run

    run_id = await resolve_run(platform, run)
    if run == "last":
        request = ListRunsRequest(limit=_LOOK_BACK, asked_for=True)
        listed = (await platform.tasksets.ListRuns(request, timeout=10)).runs
        trains = (one.run_id for one in listed if one.spec.purpose == PURPOSE_TRAIN)
        run_id = next(trains, run_id)
    found = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=10)).run
    if found.spec.purpose != PURPOSE_TRAIN:
        raise UnclearTraining(f"{run_id} is an evaluation", f"look at it with `upcycle why {run_id}`")
    return run_id


async def _follow(platform: Platform, run_id: str, view: View) -> int:
    from upcycle.cli.progress_view import progress_view
    from upcycle.cli.run_follower import Event, TrainingProgress, follow_training
    from upcycle.cli.waiting_view import saying_what_it_waits_for

    try:
        with progress_view(view.as_json) as show:
            async with saying_what_it_waits_for(platform, run_id, view.timeout_s) as mark:

                def happened(progress: TrainingProgress, event: Event) -> None:
                    counts = progress.run.counts.SerializeToString(deterministic=True)
                    mark((progress.run.state, counts, progress.last_step))
                    show(progress, event)

                run = await follow_training(platform, run_id, happened, timeout_s=view.timeout_s)
    except BaseException:
        human().print(f"the run may go on: upcycle train --attach {run_id}", markup=False)
        raise
    _print_done(run, view.as_json)
    return Exit.OK if completed(run) else Exit.FAILED


def _print_done(run: "Run", as_json: bool) -> None:
    from upcycle.cli.group_outcomes import groups_text, source_text
    from upcycle.cli.tracked_sets import done_lines
    from upcycle.reporting.mix_texts import mix_lines

    if as_json:
        print_json("done", run)
        return
    limit = run.spec.training.steps
    early = f" of {limit}, ended early" if run.step < limit else ""
    if completed(run):
        outcome = f"; {run.failure}" if run.failure else ""
    else:
        outcome = f"; it did not complete: {run.failure or 'cancelled'}"
    reward, _, episodes = scores(run)
    has_own = run.counts.requested or not run.spec.no_sampling
    sampled = f"reward {reward}, {episodes}" if has_own else "no episodes of its own"
    newest = f"v{run.policy_version}" if run.step else "no new version"
    steps = f"{amount(run.step, 'step')}{early}, {newest}"
    print(f"{run.run_id}: {steps}, {sampled}{terminal_text(outcome)}")
    usage = str(usage_of(run.usage))
    for line in (usage, groups_text(run), *mix_lines(run), *map(source_text, run.sources), *done_lines(run)):
        if line:
            print(line)
    model = run.spec.policy.model
    if run.spec.HasField("gate"):
        print(f"verdicts of the gate: upcycle models checkpoints {model}")
    elif run.step:
        print(
            f"without a gate nothing is promoted; measure it: upcycle eval TASKS {model} "
            f"--at-version {run.policy_version}; make it head: upcycle models head {model} "
            f"--set v{run.policy_version}"
        )
