"""`upcycle train`."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.preflight import refuse_early
from upcycle.cli.sft import NO_SFT, SftCall, SftOptions, SftRefused, train_sft
from upcycle.cli.sources import NO_SOURCES, Sources, check
from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.run_client import completed
from upcycle.run_specs import DEFAULT_STEPS, CommonOptions, TrainOptions
from upcycle.tasks import plain_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec


_LOOK_BACK: Final = 50


class UnclearTraining(UpcycleError, ValueError):
    """The options do not say what to train, or say two things."""

    kind = "unclear_training"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(CommonOptions):
    """What to train on, and how."""

    taskset: str | None = None
    """a tasks file, or the name of a registered taskset of split train."""
    taskset_name: str | None = None
    """which taskset of the file."""
    steps: int | None = None
    """optimizer steps; default 100, for SFT as many as the epochs need; 0: until the run is
    stopped."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """how the learning rate goes over the steps, after the warm-up."""


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
    """JSON lines: `launch`, `progress`, `step`, `checkpoint`, `alarm`…, `done`."""


async def train(
    model: str | None = None,
    *,
    recipe: Recipe = Recipe(),
    sources: Sources = NO_SOURCES,
    sft: SftOptions = NO_SFT,
    view: View = View(),
) -> int:
    """Train MODEL with online GRPO: roll out, grade, step, publish, until the steps are done.

    With --from it begins with what evaluations sampled already, whole groups with their rewards, each at
    most once; what does not fit is named. With --sft or --sft-from it does supervised fine-tuning (SFT) on
    conversations instead, and makes the last checkpoint head.

    Shows its curves until it is over. Ctrl-C leaves the run going: come back with `--attach RUN`;
    `upcycle runs pause | resume | stop RUN` steer it.

    :param model: slug of the model; its weights advance in place.
    """
    from upcycle.rpc import remote_errors

    check(sources, is_sft=sft.is_asked, attaches=view.attach is not None)
    if view.attach is not None:
        async with Platform() as platform, remote_errors():
            return await _follow(platform, await _attached(platform, view.attach), view)
    if model is not None and sft.is_asked:
        return await train_sft(model, sft, _sft_call(recipe, view))
    if model is None or (recipe.taskset is None and not sources.from_):
        raise UnclearTraining(
            "nothing to train on",
            "give MODEL with --taskset, --from, --sft or --sft-from (MODEL before --from), or --attach RUN",
        )
    options = options_of(recipe, sources)
    refuse_early(options.training(), options.group, options.gate_config())
    async with Platform() as platform, remote_errors():
        name, evaluations = await _drawn_from(platform, model, recipe, sources)
        run_id = await _launched(platform, options.spec(model, name, evaluations), view)
        return Exit.OK if view.detach else await _follow(platform, run_id, view)


def _sft_call(recipe: Recipe, view: View) -> SftCall:
    """Raises SftRefused for options that only GRPO over a taskset takes."""
    if recipe.taskset is not None:
        raise SftRefused("--taskset is for GRPO, --sft and --sft-from are for SFT", "give one of them")
    if recipe.lr_schedule != "constant" or recipe.warmup_steps or recipe.min_lr_fraction:
        raise SftRefused(
            "--lr-schedule, --warmup-steps and --min-lr-fraction are for GRPO over a taskset",
            "leave them out; with `TrainingClient.step` each step brings its own learning_rate",
        )
    if view.detach:
        raise SftRefused("--detach: this process drives SFT step by step", "leave --detach out")
    return SftCall(
        steps=recipe.steps,
        seed=recipe.seed,
        learning_rate=recipe.learning_rate,
        timeout_s=view.timeout_s,
        as_json=view.as_json,
    )


async def _drawn_from(
    platform: Platform, model: str, recipe: Recipe, sources: Sources
) -> tuple[str, list[str]]:
    """The taskset that the run plays, and the run ids of its sources. Without a limit of steps the run
    follows the revisions of a taskset that a file defines."""
    from upcycle.cli.sources import resolve
    from upcycle.cli.tasksets import register_source
    from upcycle.train.running import taskset_of

    evaluations = await resolve(platform, model, sources.from_)
    if recipe.taskset is None:
        return await taskset_of(platform, evaluations[0]), evaluations
    keeps = recipe.steps != 0
    name = await register_source(platform, recipe.taskset, recipe.taskset_name, exact=keeps)
    return name, evaluations


async def _launched(platform: Platform, spec: "RunSpec", view: View) -> str:
    from upcycle.cli.sources import begun_lines
    from upcycle.run_client import submit_run

    run = await submit_run(platform, spec)
    taskset = plain_name(run.spec.taskset)
    for line in begun_lines(run):
        human().print(line, markup=False, soft_wrap=True)
    if view.as_json:
        print_json("launch", run)
    elif view.detach:
        print(run.run_id)
    else:
        start = await _start_of(platform, run.spec.policy.model)
        human().print(f"run [bold]{run.run_id}[/bold] trains {run.spec.policy.model} on {taskset}{start}")
    return run.run_id


async def _start_of(platform: Platform, model: str) -> str:
    """Which weights a run begins with, as the end of a sentence; empty while the registry does not say."""
    import grpc

    from upcycle.api.registry.v1.service_pb2 import GetModelRequest

    try:
        found = (await platform.registry.GetModel(GetModelRequest(model=model), timeout=5)).model
    except grpc.aio.AioRpcError:
        return ""
    is_behind = found.newest_version > found.head_version
    newer = f"; the newest checkpoint, v{found.newest_version}, is not promoted" if is_behind else ""
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
        listed = (await platform.tasksets.ListRuns(ListRunsRequest(limit=_LOOK_BACK), timeout=10)).runs
        trains = (one.run_id for one in listed if one.spec.purpose == PURPOSE_TRAIN)
        run_id = next(trains, run_id)
    found = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=10)).run
    if found.spec.purpose != PURPOSE_TRAIN:
        raise UnclearTraining(f"{run_id} is an evaluation", f"look at it with `upcycle why {run_id}`")
    return run_id


async def _follow(platform: Platform, run_id: str, view: View) -> int:
    from upcycle.cli.progress_view import progress_view
    from upcycle.cli.run_follower import follow_training

    try:
        with progress_view(view.as_json) as show:
            run = await follow_training(platform, run_id, show, timeout_s=view.timeout_s)
    except BaseException:
        human().print(f"the run may go on: upcycle train --attach {run_id}", markup=False)
        raise
    _print_done(run, view.as_json)
    return Exit.OK if completed(run) else Exit.FAILED


def options_of(recipe: Recipe, sources: Sources = NO_SOURCES) -> TrainOptions:
    """The flags as options of a training run."""
    common: dict[str, Any] = {field.name: getattr(recipe, field.name) for field in fields(CommonOptions)}
    return TrainOptions(
        **common,
        steps=DEFAULT_STEPS if recipe.steps is None else recipe.steps,
        no_sampling=sources.no_sampling,
        no_step_groups=sources.no_step_groups,
    )


def _print_done(run: "Run", as_json: bool) -> None:
    from upcycle.cli.group_outcomes import groups_text, source_text

    if as_json:
        print_json("done", run)
        return
    limit = run.spec.training.steps
    early = f" of {limit}, ended early" if run.step < limit else ""
    if completed(run):
        outcome = f"; {run.failure}" if run.failure else ""
    else:
        outcome = f"; it did not complete: {run.failure or 'cancelled'}"
    sampled = "no episodes of its own"
    if run.counts.requested or not run.spec.no_sampling:
        sampled = f"reward {run.reward_mean:.3f}, {run.counts.settled} episodes"
    print(f"{run.run_id}: {run.step} steps{early}, v{run.policy_version}, {sampled}{outcome}")
    for line in (groups_text(run), *map(source_text, run.sources)):
        if line:
            print(line)
    model = run.spec.policy.model
    if run.spec.HasField("gate"):
        print(f"verdicts of the gate: upcycle models checkpoints {model}")
    elif run.step:
        print(
            f"without a gate nothing is promoted; measure it: upcycle eval TASKS {model} "
            f"--at-version {run.policy_version}; make it head: upcycle models head {model} --set CHECKPOINT"
        )
