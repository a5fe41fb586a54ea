"""Requests that must be refused: with the right status, a message that names the thing, and no effect."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from tests.libs.upcycle.run_config.bad_runs import BAD_TRAININGS
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import (
    EVAL,
    TRAIN,
    arith,
    finished,
    get,
    refusal,
    register,
    run_spec,
    submit,
)

from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY

Spoil = Callable[[taskset_pb2.Taskset], None]
HELD_OUT = common_pb2.SPLIT_HELD_OUT


def _set_args(value: Any) -> Spoil:
    def spoil(taskset: taskset_pb2.Taskset) -> None:
        taskset.tasks[1].args_json = value if isinstance(value, str) else json.dumps(value)

    return spoil


def _set(**fields: Any) -> Spoil:
    def spoil(taskset: taskset_pb2.Taskset) -> None:
        for name, value in fields.items():
            setattr(taskset.tasks[1], name, value)

    return spoil


def _trapped(taskset: taskset_pb2.Taskset, count: int) -> taskset_pb2.Taskset:
    """Its first tasks have no solution."""
    for task in taskset.tasks[:count]:
        task.family = IMPOSSIBLE_FAMILY
    return taskset


def _path(path: str) -> Spoil:
    def spoil(taskset: taskset_pb2.Taskset) -> None:
        taskset.environment.python.path = path

    return spoil


def _no_source(taskset: taskset_pb2.Taskset) -> None:
    taskset.environment.ClearField("python")


def _bad_url(taskset: taskset_pb2.Taskset) -> None:
    taskset.environment.tcp.url = "http://127.0.0.1:1"


def _nothing_there(taskset: taskset_pb2.Taskset) -> None:
    taskset.environment.tcp.url = "tcp://127.0.0.1:9"


def _other_name(taskset: taskset_pb2.Taskset) -> None:
    taskset.environment.name = "hostile"


def _no_split(taskset: taskset_pb2.Taskset) -> None:
    taskset.split = common_pb2.SPLIT_UNSPECIFIED


def _wrong_digest(taskset: taskset_pb2.Taskset) -> None:
    taskset.digest = "0" * 64


def _no_tasks(taskset: taskset_pb2.Taskset) -> None:
    del taskset.tasks[:]


def _named(name: str) -> Spoil:
    def spoil(taskset: taskset_pb2.Taskset) -> None:
        taskset.name = name

    return spoil


def _unknown_field(taskset: taskset_pb2.Taskset) -> None:
    # Field 77 as a varint, as a newer client would send it.
    taskset.tasks[0].MergeFromString(b"\xe8\x04\x01")


BAD_TASKSETS: list[tuple[Spoil, str]] = [
    (_set_args({"a": 1}), "task 't1': scenario 'sum' needs argument 'b'"),
    (_set_args({"a": 1, "b": 2, "c": 3}), "has no argument 'c'"),
    (_set_args({"a": 1, "b": "two"}), "argument 'b' is 'two', expected"),
    (_set_args({"a": 1, "b": True}), "argument 'b' is True"),
    (_set_args({"a": 1, "b": 2, "c": "x" * 65_536}), "limit 65536"),
    (_set_args("[1, 2]"), "not an object"),
    (_set_args("{nonsense"), "not JSON"),
    (_set_args('{"a": NaN, "b": 1}'), "not JSON"),
    (_set_args('{"a": "\\ud800", "b": 1}'), "task 't1': arguments are not JSON"),
    (_set_args('{"\\udfff": 1}'), "task 't1': arguments are not JSON"),
    (_set_args('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"), "task 't1': arguments are not JSON"),
    (
        _set_args('{"a": ' + "[" * 101 + "]" * 101 + "}"),
        "task 't1': arguments are nested 101 deep, limit 100",
    ),
    (_set(scenario="divide"), "no scenario 'divide'; it has sum"),
    (_set(slug="t0"), "slug 't0' occurs twice"),
    (_set(slug=""), "task.slug"),
    (_set(slug="line\nbreak"), "not printable"),
    (_set(digest="f" * 64), "digest"),
    (_path("/etc/passwd"), "add its folder: `upcycle up --environments FOLDER`"),
    (_path(f"{ENVIRONMENTS}/../../../../libs/upcycle/errors.py"), "outside the allowed roots"),
    (_path(str(ENVIRONMENTS / "missing.py")), "not a Python file"),
    (_no_source, "no source"),
    (_bad_url, "use tcp://host:port"),
    (_nothing_there, "no environment answers at tcp://127.0.0.1:9"),
    (_other_name, "declares no environment 'hostile'"),
    (_no_split, "taskset.split"),
    (_wrong_digest, "its content has"),
    (_no_tasks, "has 0 tasks"),
    (_named("sums@2"), "'sums@2' ends like a revision"),
    (_named("sums@٣"), "ends like a revision"),
    (_unknown_field, "has field 77"),
    (_set(family=IMPOSSIBLE_FAMILY), "task 't1' is of family 'impossible-by-design': it has no solution"),
]


async def test_malformed_tasksets_are_refused_and_leave_nothing(runner: Runner) -> None:
    for spoil, text in BAD_TASKSETS:
        taskset = arith()
        spoil(taskset)
        error = await refusal(register(runner, taskset))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (text, error)
        assert text in (error.details() or ""), (text, error.details())
    listed = await runner.tasksets.ListTasksets(service_pb2.ListTasksetsRequest())
    assert not listed.tasksets
    assert (await register(runner, arith())).created


async def test_an_environment_that_fails_to_import_is_refused_by_name(runner: Runner, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    taskset = arith()
    taskset.environment.python.path = str(broken)
    error = await refusal(register(runner, taskset))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no_such_module" in (error.details() or "")


async def test_a_taskset_keeps_its_split_and_can_be_read_back(runner: Runner) -> None:
    first = await register(runner, arith())
    again = await register(runner, arith())
    assert (again.created, again.digest) == (False, first.digest)
    error = await refusal(register(runner, arith(4, split=HELD_OUT)))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "is registered with split train" in (error.details() or "")
    stored = (await runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="sums"))).taskset
    assert stored.digest == first.digest
    assert [(task.slug, task.args_json, task.family) for task in stored.tasks] == [
        (f"t{n}", f'{{"a":1,"b":{n}}}', "small") for n in range(3)
    ]
    assert all(len(task.digest) == 64 for task in stored.tasks)
    error = await refusal(runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="summs")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "no taskset 'summs' is registered; did you mean 'sums'? There are: sums"


async def test_tcp_environments_can_be_switched_off(start_runner: Start) -> None:
    runner = await start_runner(allow_tcp=False)
    taskset = arith()
    taskset.environment.tcp.url = "tcp://127.0.0.1:9"
    error = await refusal(register(runner, taskset))
    assert "SCENARIO_RUNNER_ALLOW_TCP" in (error.details() or "")


def _with(**fields: Any) -> taskset_pb2.RunSpec:
    return run_spec(**fields)


def _policy(**fields: Any) -> taskset_pb2.RunSpec:
    spec = run_spec()
    spec.policy.CopyFrom(common_pb2.PolicySelector(**{"model": "incident", **fields}))
    return spec


def _training(**fields: Any) -> taskset_pb2.RunSpec:
    return run_spec(TRAIN, 2, training=taskset_pb2.TrainingConfig(**fields))


def _bad_training(group_size: int = 2, **fields: Any) -> taskset_pb2.RunSpec:
    return run_spec(TRAIN, group_size, training=taskset_pb2.TrainingConfig(**fields))


def _sampling(**fields: Any) -> taskset_pb2.RunSpec:
    return run_spec(sampling=taskset_pb2.SamplingConfig(**fields))


INVALID, NOT_FOUND, PRECONDITION = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
)
GATE = taskset_pb2.GateConfig(taskset="held")


def _gated(**asked: Any) -> taskset_pb2.RunSpec:
    return _with(purpose=TRAIN, gate=taskset_pb2.GateConfig(**{"taskset": "held", **asked}))


BAD_RUNS: list[tuple[taskset_pb2.RunSpec, grpc.StatusCode, str]] = [
    (_with(purpose=TRAIN, group_size=1), INVALID, "spec.group_size must be >= 2 and <= 1024, got 1"),
    (_with(group_size=0), INVALID, "spec.group_size must be >= 1 and <= 1024, got 0"),
    (_with(group_size=100_000), INVALID, "spec.group_size must be >= 1 and <= 1024, got 100000"),
    (_with(purpose=common_pb2.PURPOSE_UNSPECIFIED), INVALID, "spec.purpose"),
    (_with(taskset="summs"), NOT_FOUND, "no taskset 'summs'"),
    (_policy(model="incidnet"), NOT_FOUND, "incidnet"),
    (_policy(model=""), INVALID, "spec.policy.model"),
    (_policy(pinned_version=99), NOT_FOUND, "no version 99"),
    (_policy(pinned_version=2), PRECONDITION, "version 2 was removed"),
    (_policy(pinned_version=-1), INVALID, "pinned_version must be >= 0"),
    (_policy(channel=common_pb2.CHANNEL_CANDIDATE), INVALID, "set pinned_version"),
    (_sampling(temperature=float("nan")), INVALID, "sampling.temperature must be >= 0 and <= 10, got nan"),
    (_sampling(temperature=-1.0), INVALID, "spec.sampling.temperature"),
    (_sampling(max_turns=0), INVALID, "spec.sampling.max_turns"),
    (_sampling(top_p=1.5), INVALID, "spec.sampling.top_p"),
    (_with(episode_deadline_s=0), INVALID, "spec.episode_deadline_s"),
    (_with(label="x" * 501), INVALID, "spec.label"),
    (_with(training=taskset_pb2.TrainingConfig(steps=1)), INVALID, "for purpose TRAIN only"),
    (_with(gate=GATE), INVALID, "for purpose TRAIN only"),
    (_with(source_runs=["run-x"]), INVALID, "spec.source_runs is for purpose TRAIN only"),
    (_with(no_sampling=True), INVALID, "spec.no_sampling is for purpose TRAIN only"),
    (_with(purpose=TRAIN, trainable=True), INVALID, "spec.trainable is for purpose EVAL only"),
    (_with(trainable=True, group_size=1), INVALID, "spec.trainable needs spec.group_size of 2 to 512"),
    (_with(trainable=True, taskset="held"), PRECONDITION, "held out: its episodes never train"),
    (_with(purpose=TRAIN, source_runs=["a", "a"]), INVALID, "names 'a' twice"),
    (_with(purpose=TRAIN, source_runs=["run-nope"]), NOT_FOUND, "source run 'run-nope' does not exist"),
    (_sampling(thinking="512"), INVALID, "thinking is 512 and spec.sampling.max_tokens_per_turn"),
    (_sampling(thinking="0"), INVALID, "must be on, off or a budget of 1 to 1048576 tokens"),
    (_training(epochs=1, warmup_steps=2), INVALID, "over 3 tasks: spec.training.warmup_steps must be >= 0"),
    *[(_bad_training(**config), INVALID, said) for config, said in BAD_TRAININGS],
    (_with(purpose=TRAIN, taskset="held"), PRECONDITION, "never trains; measure it: upcycle eval held "),
    (_with(purpose=TRAIN, taskset="loose"), PRECONDITION, "'loose' is unassigned: it neither trains nor"),
    (_with(purpose=TRAIN, gate=taskset_pb2.GateConfig(taskset="sums")), PRECONDITION, "judges on held-out"),
    (_with(purpose=TRAIN, gate=taskset_pb2.GateConfig(taskset="loose")), PRECONDITION, "split unassigned; a"),
    (_with(purpose=TRAIN, gate=taskset_pb2.GateConfig(taskset="none")), NOT_FOUND, "no taskset 'none'"),
    (_gated(attempts=65), INVALID, "spec.gate: the last look is 65 attempts; the limit is 64"),
    (_gated(min_gain=-0.5), INVALID, "spec.gate: min_gain is -0.5; use 0 to 0.9"),
    (_gated(regression_margin=0.0), INVALID, "spec.gate: regression_margin is 0; use 0.001 to 1"),
    (_gated(critical=["sum"]), INVALID, "spec.gate.critical: taskset 'held' has no family 'sum'; it has "),
    (
        _gated(critical=["a:b:c:d"]),
        INVALID,
        "spec.gate: critical family 'a:b:c:d' is not FAMILY, FAMILY:MARG",
    ),
    (
        _gated(critical=["default:0.1:1"]),
        INVALID,
        "critical family 'default': attempts is 1; use 2 (the firs",
    ),
    (_with(purpose=TRAIN, track=["held:5"]), INVALID, "spec.track: 'held:5' is not TASKSET or TASKSET:every"),
    (_with(purpose=TRAIN, track=["held", "held:every=2"]), INVALID, "spec.track names 'held' twice"),
    (_with(purpose=TRAIN, stop_on="two_drops"), INVALID, "spec.stop_on is two_drops and spec.track is empty"),
    (_with(purpose=TRAIN, track=["held"], stop_on="drop"), INVALID, "spec.stop_on 'drop' does not exist"),
    (_with(track=["held"]), INVALID, "spec.track is for purpose TRAIN only"),
    (_with(purpose=TRAIN, track=["none"]), NOT_FOUND, "no taskset 'none'"),
    (
        _with(purpose=TRAIN, track=["audits"]),
        PRECONDITION,
        "tracked taskset 'audits' is of split audit; a run",
    ),
    (_gated(require_review=201), INVALID, "spec.gate.require_review must be >= 0 and <= 200, got 201"),
    (_gated(taskset="lone"), PRECONDITION, "gate taskset 'lone' has one task; a gate compares versions over"),
    (_gated(taskset="traps"), PRECONDITION, "all tasks of gate taskset 'traps' are of family 'impossible-by"),
    (
        _gated(taskset="mixed", critical=[IMPOSSIBLE_FAMILY]),
        INVALID,
        "taskset 'mixed' has no family 'impossible-by-design'; it has small",
    ),
    (_gated(taskset="audits"), PRECONDITION, "is of split audit; a gate judges on held-out tasks only"),
    (
        _with(purpose=TRAIN, gate=taskset_pb2.GateConfig(taskset="held", confidence=1.0)),
        INVALID,
        "spec.gate.confidence",
    ),
]


async def test_bad_runs_are_refused_and_leave_nothing(runner: Runner) -> None:
    await register(runner, arith())
    await register(runner, arith(name="held", split=HELD_OUT, first=100))
    await register(runner, arith(name="loose", split=common_pb2.SPLIT_UNASSIGNED))
    await register(runner, arith(1, "lone", HELD_OUT, first=300))
    await register(runner, arith(2, "audits", common_pb2.SPLIT_AUDIT, first=400))
    await register(runner, _trapped(arith(3, "traps", HELD_OUT, first=500), 3))
    await register(runner, _trapped(arith(4, "mixed", HELD_OUT, first=600), 1))
    for number, (spec, code, text) in enumerate(BAD_RUNS):
        error = await refusal(submit(runner, spec, f"request-{number}"))
        assert error.code() is code, (text, error)
        assert text in (error.details() or ""), (text, error.details())
    spec = run_spec()
    spec.MergeFromString(b"\xe8\x04\x01")
    error = await refusal(submit(runner, spec))
    assert error.code() is INVALID
    assert "has field 77" in (error.details() or "")
    error = await refusal(submit(runner, run_spec(), request_id=""))
    assert "request_id" in (error.details() or "")
    assert not (await runner.tasksets.ListRuns(service_pb2.ListRunsRequest())).runs


async def test_a_training_follows_latest_and_a_model_is_trained_by_one_run(runner: Runner) -> None:
    await register(runner, arith())
    spec = _training(steps=1)
    spec.policy.channel = common_pb2.CHANNEL_HEAD
    assert (await refusal(submit(runner, spec))).code() is INVALID
    first = await submit(runner, _training(steps=1), "one")
    error = await refusal(submit(runner, _training(steps=2), "two"))
    assert error.code() is PRECONDITION
    assert first.run_id in (error.details() or "")
    other = _training(steps=2)
    other.policy.model = "other"
    assert (await submit(runner, other, "three")).run_id != first.run_id
    listed = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest(model="incident"))
    assert [run.run_id for run in listed.runs] == [first.run_id]
    assert (await refusal(runner.tasksets.ListRuns(service_pb2.ListRunsRequest(limit=-1)))).code() is INVALID
    await runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id=first.run_id))
    await finished(runner, first.run_id)
    unfinished = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest(unfinished=True, limit=1))
    assert first.run_id not in [run.run_id for run in unfinished.runs]
    assert [run.spec.policy.model for run in unfinished.runs] == ["other"]


async def test_unknown_runs_and_episodes_are_named(runner: Runner) -> None:
    for call in (
        get(runner, "run-nope"),
        runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id="run-nope")),
        runner.tasksets.ExplainRun(service_pb2.ExplainRunRequest(run_id="run-nope")),
    ):
        error = await refusal(call)
        assert error.code() is NOT_FOUND
        assert "run-nope" in (error.details() or "")
    error = await refusal(runner.environments.Open(env_pb2.OpenRequest(episode_id="run-x-g00000-e000-a0")))
    assert error.code() is PRECONDITION
    for call in (
        runner.environments.CallTool(env_pb2.CallToolRequest(lease_id="lease-nope", call_id="1", name="add")),
        runner.environments.Grade(env_pb2.GradeRequest(lease_id="lease-nope")),
    ):
        error = await refusal(call)
        assert error.code() is NOT_FOUND
        assert dict(error.trailing_metadata() or ())["upcycle-error-kind"] == "environment_lost"
    await runner.environments.Close(env_pb2.CloseRequest(lease_id="lease-nope"))


async def test_an_unreachable_registry_is_not_an_unknown_model(runner: Runner) -> None:
    await register(runner, arith())
    runner.registry.is_away = True
    error = await refusal(submit(runner, run_spec(EVAL)))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    runner.registry.is_away = False
    assert (await submit(runner, run_spec(EVAL))).run_id
