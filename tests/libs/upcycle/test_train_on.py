"""`job.train` and `TrainingClient.train_on`: what is asked of the planner, and what comes back."""

from collections.abc import AsyncIterator

import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving, training

from upcycle import TrainingClient
from upcycle.agents import create_agent
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.errors import SourcesRefused, UpcycleError
from upcycle.evaluation import EvaluationFailed, Job, spec_of
from upcycle.platform import Platform
from upcycle.results import Run
from upcycle.rpc import RemoteNotFound, RemoteRefused
from upcycle.run_config import PolicyChoice, Purpose, RunConfigInvalid, RunSpec
from upcycle.run_config.flags import flags_of, training_run
from upcycle.tasks import EnvironmentRef, Task, Taskset
from upcycle.train import Source, TrainedRun, TrainingFailed
from upcycle.trained_models import head_was_set, stepped
from upcycle.usage import Usage

COUNTS = ts.RunCounts(groups_by_outcome={"trained": 8, "released(zero_spread)": 2})
USAGE = common.Usage(engine_s=12.0, environment_s=40.0, trainer_s=8.0, cost=0.5)
REPORT = ts.SourceReport(run_id="run-a", groups=12, trained=8, left_out={"zero_spread": 2, "version": 2})


@pytest.fixture
async def planner() -> AsyncIterator[tuple[Planner, Platform]]:
    """A planner that knows two evaluations, and a client of it."""
    said = Planner()  # type: ignore[abstract]
    said.runs = [evaluation("run-a", "sums@2"), evaluation("run-b")]
    fields = {"step": 2, "policy_version": 5, "counts": COUNTS, "sources": [REPORT], "usage": USAGE}
    said.watched = [training("run-new"), training("run-new", state=ts.RUN_STATE_COMPLETED, **fields)]
    async with serving(said) as addresses, Platform(addresses) as platform:
        yield said, platform


def episode(run_id: str, episode_id: str = "e") -> Run:
    return Run("slug", 1.0, True, f"traj-{episode_id}", episode_id, run_id=run_id)


async def test_a_job_trains_on_its_evaluations(planner: tuple[Planner, Platform]) -> None:
    said, platform = planner
    job = await Job.start("m", group=4)
    job.runs += [episode("run-a", "1"), episode("run-a", "2"), episode("run-b", "3")]
    assert job.run_ids == ["run-a", "run-b"]
    trained = await job.train(runtime=platform, steps=2, prompts=4, learning_rate=1e-3, sampling=False)
    assert trained == TrainedRun(
        run_id="run-new",
        steps=2,
        version=5,
        counts={"trained": 8, "released(zero_spread)": 2},
        sources=(Source("run-a", 12, 8, {"zero_spread": 2, "version": 2}),),
        usage=Usage(12.0, 40.0, 8.0, 0.5),
    )
    (request,) = said.submitted
    spec = request.spec
    assert (spec.purpose, spec.policy.model, spec.taskset) == (common.PURPOSE_TRAIN, "m", "sums")
    assert (list(spec.source_runs), spec.no_sampling, spec.group_size) == (["run-a", "run-b"], True, 4)
    asked = (spec.training.steps, spec.training.prompts_per_step, spec.training.learning_rate)
    assert asked == (2, 4, 1e-3)


async def test_runs_and_run_ids_mix_and_the_taskset_can_be_another(planner: tuple[Planner, Platform]) -> None:
    said, platform = planner
    client = TrainingClient("m", runtime=platform)
    await client.train_on([episode("run-b"), "run-a", "run-b"], taskset="other", gate="judge", seed=3)
    spec = said.submitted[0].spec
    assert (list(spec.source_runs), spec.taskset, spec.no_sampling) == (["run-b", "run-a"], "other", False)
    assert (spec.gate.taskset, spec.training.seed) == ("judge", 3)


async def test_recorded_sessions_train_without_a_taskset(planner: tuple[Planner, Platform]) -> None:
    said, platform = planner
    client = TrainingClient("m", runtime=platform)
    trained = await client.train_on_sessions("group=nightly", steps=2, single_sessions="batch", gate="judge")
    assert (trained.run_id, trained.version) == ("run-new", 5)
    spec = said.submitted[0].spec
    assert (spec.taskset, spec.sessions, spec.no_sampling) == ("", "group=nightly", True)
    assert (spec.training.steps, spec.training.single_sessions, spec.gate.taskset) == (2, "batch", "judge")


async def test_a_run_that_fails_raises_with_its_reason_and_what_is_known(
    planner: tuple[Planner, Platform],
) -> None:
    said, platform = planner
    said.watched = [training("run-new", state=ts.RUN_STATE_FAILED, failure="nothing to learn", counts=COUNTS)]
    with pytest.raises(TrainingFailed, match="run-new did not complete: nothing to learn") as failed:
        await TrainingClient("m", runtime=platform).train_on(["run-a"])
    assert failed.value.run is not None
    assert failed.value.run.failure == "nothing to learn"
    assert failed.value.run.counts["trained"] == 8
    said.watched = [training("run-new", state=ts.RUN_STATE_CANCELLED)]
    with pytest.raises(TrainingFailed, match="cancelled"):
        await TrainingClient("m", runtime=platform).train_on(["run-a"])
    said.watched = [training("run-new")]
    with pytest.raises(TrainingFailed, match=r"not over within 0\.3 s; it goes on"):
        await TrainingClient("m", runtime=platform).train_on(["run-a"], timeout_s=0.3)


async def test_what_is_refused_reaches_the_caller(planner: tuple[Planner, Platform]) -> None:
    said, platform = planner
    client = TrainingClient("m", runtime=platform)
    with pytest.raises(RemoteNotFound, match="no run run-x"):
        await client.train_on(["run-x"])
    said.refusal = "run-a is trained already by run-0"
    with pytest.raises(RemoteRefused, match="trained already by run-0"):
        await client.train_on(["run-a"])
    with pytest.raises(UpcycleError, match="no run to train on"):
        await client.train_on([])
    with pytest.raises(UpcycleError, match="which evaluation it belongs to"):
        await client.train_on([episode("")])
    with pytest.raises(RunConfigInvalid, match="did you mean 'learning_rate'"):
        await client.train_on(["run-a"], learning_rat=1.0)
    lonely = await Job.start("m", group=1)
    with pytest.raises(EvaluationFailed, match=r"Job\.start"):
        await lonely.train(runtime=platform)
    assert not said.submitted


def test_every_flag_of_train_is_a_keyword_with_the_same_default() -> None:
    plain = RunSpec("?", Purpose.TRAIN, PolicyChoice("m"))
    assert training_run("m", {}) == plain
    later = {"taskset", "taskset_name", "from"}
    names = {flag.replace("-", "_") for flag in flags_of(Purpose.TRAIN).values()} - later
    assert training_run("m", dict.fromkeys(names)) == plain
    with pytest.raises(RunConfigInvalid, match="unknown option 'taskset'"):
        training_run("m", {"taskset": "sums"})


async def test_a_registered_taskset_is_trained_on_as_it_is_now(planner: tuple[Planner, Platform]) -> None:
    said, platform = planner
    client = TrainingClient("m", runtime=platform)
    sums = Taskset("sums", [Task(EnvironmentRef("arith", path="/arith.py"), "sum")])
    await client.train_on(["run-a"], taskset=sums)
    await client.train_on(["run-a"], taskset=sums, steps=0)
    assert [request.spec.taskset for request in said.submitted] == ["sums@3", "sums"]
    said.runs.append(evaluation("run-h", "judge"))
    with pytest.raises(SourcesRefused, match="'judge', which is not of split train"):
        await client.train_on(["run-h"])


def test_an_option_has_the_type_of_its_flag() -> None:
    assert training_run("m", {"learning_rate": 1, "max_turns": None}) == training_run(
        "m", {"learning_rate": 1.0}
    )
    for wrong in ({"steps": 1.0}, {"steps": True}, {"gate": 3}, {"no_sampling": "yes"}):
        with pytest.raises(RunConfigInvalid, match="is not"):
            training_run("m", wrong)
    with pytest.raises(RunConfigInvalid, match="group must be >= 2"):
        training_run("m", {"group": 1})


def test_an_evaluation_that_may_train_plays_the_newest_weights() -> None:
    spec = spec_of(create_agent("sums"), "sums", 8, trainable=True)
    assert (spec.trainable, spec.policy.channel) == (True, common.CHANNEL_LATEST)
    assert spec_of(create_agent("sums"), "sums", 8).policy.channel == common.CHANNEL_HEAD
    assert spec_of(create_agent("sums@v3"), "sums", 8, trainable=True).policy.pinned_version == 3
    stepped("sums", is_head=False)  # a gate decides about what this process trained
    assert spec_of(create_agent("sums"), "sums", 8).policy.channel == common.CHANNEL_LATEST
    assert spec_of(create_agent("sums@v3"), "sums", 8).policy.pinned_version == 3  # a pin stays one
    assert spec_of(create_agent("other"), "sums", 8).policy.channel == common.CHANNEL_HEAD
    head_was_set("sums")
    assert spec_of(create_agent("sums"), "sums", 8).policy.channel == common.CHANNEL_HEAD
    with pytest.raises(UpcycleError, match="needs group of 2 to 512, it is 1"):
        spec_of(create_agent("sums"), "sums", 1, trainable=True)


async def test_what_was_graded_in_this_process_is_no_source_of_a_run(
    planner: tuple[Planner, Platform],
) -> None:
    said, platform = planner
    client = TrainingClient("m", runtime=platform)
    for given in ("here-0123456789ab", episode("here-0123456789ab")):
        with pytest.raises(SourcesRefused, match=r"client_graded.*interactive calls alone, never by a run"):
            await client.train_on(["run-a", given], steps=1)
    assert said.submitted == []
