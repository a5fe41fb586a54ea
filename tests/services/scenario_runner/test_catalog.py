"""`upcycle tasksets list|show|diff|delete` against the running service, and what a deletion leaves."""

import asyncio
import json
from datetime import timedelta

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec
from tests.services.scenario_runner.support import arith, register, run_spec, submit
from tests.services.scenario_runner.test_retention import removing
from tests.services.scenario_runner.test_splits import taskset as numbered
from tests.support.command_line import CommandLine

from episodes import Split
from retention import SweepOrder
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.runs import NotFound, Refused
from scenario_runner.domain.tasksets import RegisteredTaskset
from scenario_runner.usecases.catalog import Tasksets
from scenario_runner.usecases.revisions import store
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1.registry_pb2 import Checkpoint, GateReport
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.cli.taskset_diff import difference

HELD_OUT = common_pb2.SPLIT_HELD_OUT


@pytest.fixture
def upcycle(runner: Runner, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys, {"tasksets": runner.address})


async def test_tasksets_are_listed_shown_and_compared(runner: Runner, upcycle: CommandLine) -> None:
    assert "no taskset is registered" in (await upcycle("tasksets", "list")).err
    await register(runner, arith(2))
    await register(runner, arith(3))
    await register(runner, arith(2, "judge", HELD_OUT, first=10))
    listed = [json.loads(line) for line in (await upcycle("tasksets", "list", "--json")).out.splitlines()]
    assert [(one["name"], one["revision"], one["num_tasks"], one["splits"]) for one in listed] == [
        ("judge", "1", "2", {"held_out": "2"}),
        ("sums", "2", "3", {"train": "3"}),
    ]
    assert len(listed[0]["source_digest"]) == 64
    assert listed[0]["source_digest"] == listed[1]["source_digest"]
    table = (await upcycle("tasksets", "list")).out.splitlines()
    assert table[0].split()[:3] == ["taskset", "revision", "tasks"]
    assert "3 train" in table[2]
    shown = await upcycle("tasksets", "show", "sums@1", "--limit", "1")
    assert "sums@1, digest" in shown.out
    assert "arith.py" in shown.out
    assert "and 1 more task:" in shown.out
    whole = json.loads((await upcycle("tasksets", "show", "sums", "--json")).out)
    assert [(one["slug"], one["side"]) for one in whole["tasks"]] == [(f"t{n}", "train") for n in range(3)]
    assert [one["revision"] for one in whole["revisions"]] == ["1", "2"]
    assert (await upcycle("tasksets", "diff", "sums")).out.splitlines() == [
        "sums@1 → sums@2: 1 added, 0 removed, 0 changed, 0 renamed, 2 the same",
        "+ t2",
    ]
    other = await upcycle("tasksets", "diff", "sums@2", "judge")
    assert "2 added, 3 removed" in other.out


async def listed(upcycle: CommandLine) -> list[dict[str, object]]:
    """Without checks: the scans for leaks that follow a registration end when they end."""
    rows = [json.loads(line) for line in (await upcycle("tasksets", "list", "--json")).out.splitlines()]
    return [{name: value for name, value in row.items() if name != "checks"} for row in rows]


WRONG = (
    (("show", "summs"), "no taskset 'summs' is registered; did you mean 'sums'? There are: judge, sums"),
    (("show", "sums@9"), "no taskset 'sums@9' is registered; did you mean 'sums'? There are: judge, sums"),
    (("show", "sums", "--limit", "-1"), "--limit is -1"),
    (("diff", "sums"), "sums@1 is the first revision of 'sums'"),
    (("diff", "sums", "juge"), "did you mean 'judge'?"),
    (("delete", "suns"), "did you mean 'sums'?"),
    (("delete", "sums@1"), "'sums@1' is one revision of taskset 'sums', which is deleted whole"),
)


async def test_bad_input_is_refused_by_name_and_changes_nothing(runner: Runner, upcycle: CommandLine) -> None:
    await register(runner, arith(2))
    await register(runner, arith(2, "judge", HELD_OUT, first=10))
    before = await listed(upcycle)
    for arguments, said in WRONG:
        refused = await upcycle("tasksets", *arguments)
        assert (refused.status, refused.out) == (2, ""), arguments
        assert said in refused.err
    assert await listed(upcycle) == before


async def test_what_refers_to_a_taskset_is_named_and_keeps_it(runner: Runner, upcycle: CommandLine) -> None:
    await register(runner, arith(2))
    await register(runner, arith(2, "judge", HELD_OUT, first=10))
    gate = taskset_pb2.GateConfig(taskset="judge")
    training = taskset_pb2.TrainingConfig(steps=1, prompts_per_step=1)
    spec = run_spec(common_pb2.PURPOSE_TRAIN, training=training, gate=gate)
    run_id = (await submit(runner, spec)).run_id
    for name, said in (("sums", f"run {run_id};"), ("judge", f"run {run_id} (its gate);")):
        refused = await upcycle("tasksets", "delete", name)
        assert refused.status == 2
        assert f"taskset {name!r} is referred to by {said}" in refused.err
    await register(runner, arith(1, "free", HELD_OUT, first=20))
    runner.registry.gates["other"] = "free@1"
    judged = Checkpoint(checkpoint_id="ckpt-1", model="other", gate=GateReport(taskset="free"))
    runner.registry.checkpoints.append(judged)
    refused = await upcycle("tasksets", "delete", "free")
    assert "the gate of model other, checkpoint ckpt-1 of other (judged by it)" in refused.err
    runner.registry.is_away = True
    away = await upcycle("tasksets", "delete", "free")
    assert (away.status, "before the registry says" in away.err) == (4, True)
    runner.registry.is_away = False
    runner.registry.gates.clear()
    runner.registry.checkpoints.clear()
    deleted = await upcycle("tasksets", "delete", "free")
    assert (
        deleted.out
        == "free is deleted: 1 revision, 1 task in the newest; its 1 held-out task stays held out\n"
    )
    assert "free" not in (await upcycle("tasksets", "list")).out
    # Its task is on its side for ever, and its number is not given again.
    as_train = await upcycle("tasksets", "show", "free")
    assert as_train.status == 2
    again = await register(runner, arith(1, "free", HELD_OUT, first=20))
    assert (again.revision, again.created) == (2, True)
    with pytest.raises(Exception, match="is held out already: taskset free claimed it"):
        await register(runner, arith(1, "mine", first=20))


class NoLineages:
    """Implements Lineages: the registry refers to nothing."""

    async def of_taskset(self, taskset: str, run_ids: object) -> list[str]:
        return []


def tasksets_of(plan: SqlPlan) -> Tasksets:
    async def files_now(source: object) -> None:
        return None

    return Tasksets(plan, files_now, NoLineages())


async def test_a_run_keeps_its_taskset_until_retention_removed_it(sources: SourcesHarness) -> None:
    tasksets = tasksets_of(sources.planner.plan)
    old = await sources.evaluation()
    with pytest.raises(Refused, match=f"'ts' is referred to by run {old};"):
        await tasksets.delete("ts")
    sources.planner.now += timedelta(days=31)
    assert (await removing(sources)(SweepOrder(apply=True))).number == 1
    (gone,) = await tasksets.delete("ts")
    assert (gone.taskset.name, gone.taskset.num_tasks) == ("ts", 6)
    with pytest.raises(NotFound, match="no taskset 'ts' is registered"):
        await tasksets.get("ts")
    with pytest.raises(NotFound, match="no taskset 'ts' is registered"):
        await sources.submit(eval_spec())
    assert (await sources.view(old)).run.taskset == "ts"


async def test_a_run_that_is_submitted_and_a_deletion_never_both_succeed(sources: SourcesHarness) -> None:
    tasksets = tasksets_of(sources.planner.plan)
    for number in range(4):
        name = f"n{number}"
        await sources.planner.do(lambda unit, name=name: registered(unit, name))  # type: ignore[misc]
        submitted, deleted = await asyncio.gather(
            sources.submit(eval_spec(name)), tasksets.delete(name), return_exceptions=True
        )
        assert isinstance(submitted, NotFound) == isinstance(deleted, list), (submitted, deleted)


def registered(unit: PlanUnit, name: str) -> RegisteredTaskset:
    return store(unit, numbered(name, Split.TRAIN, 1, 2))[0]


def test_tasks_are_the_same_by_digest_and_called_by_slug() -> None:
    def tasks(**digests: str) -> list[taskset_pb2.Task]:
        return [taskset_pb2.Task(slug=slug, digest=digest) for slug, digest in digests.items()]

    found = difference(tasks(a="1", b="2", c="3", d="4"), tasks(d="4", a="1", b="5", e="3", f="6"))
    assert str(found) == "1 added, 0 removed, 1 changed, 1 renamed, 2 the same, in another order"
    assert (found.added, found.changed, found.renamed) == (("f",), ("b",), (("c", "e"),))
    assert not difference(tasks(a="1", b="1"), tasks(b="1", a="1", c="1")).renamed
    assert difference(tasks(a="1", b="1"), tasks(c="1")).renamed == (("a", "c"),)
    assert difference(tasks(a="1", b="1"), tasks(c="1")).removed == ("b",)
