"""`train --from`, `eval --trainable` and how groups ended, as a user meets them: the installed command
against a planner that says what the test wants."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving, training
from tests.support.command_line import run_upcycle, without_settings

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli.group_outcomes import counted, groups_text, source_text, step_text
from upcycle.cli.runs import run_table
from upcycle.cli.sources import begun_lines
from upcycle.platform import Addresses
from upcycle.tasks import EnvironmentRef, Task, Taskset

UPCYCLE = Path(sys.executable).parent / "upcycle"
LONG = "no step within 64 groups: " + "zero_spread " * 40


@pytest.fixture
async def planner() -> AsyncIterator[tuple[Planner, Addresses]]:
    """A planner, and where it is."""
    said = Planner()  # type: ignore[abstract]
    async with serving(said) as addresses:
        yield said, addresses


async def upcycle(
    addresses: Addresses | None, *arguments: str, cwd: Path | None = None
) -> tuple[int, str, str]:
    peers = addresses.peers if addresses is not None else {}
    env = {f"UPCYCLE_PEERS_{peer.upper()}": address for peer, address in peers.items()}
    return await run_upcycle(*arguments, env={**without_settings(), **env, "COLUMNS": "100"}, cwd=cwd)


async def test_sources_are_asked_for_and_what_does_not_fit_is_named(
    planner: tuple[Planner, Addresses],
) -> None:
    said, where = planner
    said.runs = [evaluation("run-a"), evaluation("run-b", "judge")]
    left_out = {"version": 6, "incomplete_group": 20}
    said.answer = training("run-t", sources=[ts.SourceReport(run_id="run-a", groups=64, left_out=left_out)])
    options = (
        "--from",
        "run-a",
        "run-b",
        "--no-sampling",
        "--steps",
        "0",
        "--no-step-groups",
        "9",
        "--detach",
    )
    status, out, err = await upcycle(where, "train", "m", *options)
    assert (status, out) == (0, "run-t\n"), err
    (request,) = said.submitted
    assert list(request.spec.source_runs) == ["run-a", "run-b"]
    assert request.spec.no_sampling
    assert request.spec.taskset == "sums"  # that of the first source
    assert request.spec.training.HasField("steps")
    assert (request.spec.training.steps, request.spec.training.no_step_groups) == (0, 9)
    assert "from run-a: 38 of 64 groups can train; left out: 20 incomplete, 6 other version" in err


async def test_last_is_the_newest_evaluation_of_train_tasks(planner: tuple[Planner, Addresses]) -> None:
    said, where = planner
    said.runs = [training("run-4"), evaluation("run-3", "judge"), evaluation("run-2"), evaluation("run-1")]
    status, _, err = await upcycle(where, "train", "m", "--from", "last", "--taskset", "other", "--detach")
    assert status == 0, err
    assert list(said.submitted[0].spec.source_runs) == ["run-2"]
    assert said.submitted[0].spec.taskset == "other"
    said.runs = said.runs[:2]
    status, _, err = await upcycle(where, "train", "m", "--from", "last", "--detach")
    assert status == 2
    assert "upcycle eval TASKS m --group 8" in err


async def test_what_a_file_defines_is_submitted_as_the_revision_that_it_is(
    planner: tuple[Planner, Addresses], tmp_path: Path
) -> None:
    said, where = planner
    said.answer, said.watched = None, [evaluation("run-e", "sums@3")]
    env = EnvironmentRef("arith", path=str(tmp_path / "arith.py"))
    Taskset("sums", [Task(env, "sum", '{"a":1}')]).save(tmp_path / "sums.json")
    file, endless = str(tmp_path / "sums.json"), ("--steps", "0")
    for tasks, options in ((file, ()), ("sums@2", ()), (file, endless), ("sums@2", endless)):
        status, _, err = await upcycle(where, "train", "m", "--taskset", tasks, *options, "--detach")
        assert status == 0, err
    asked = [request.spec.taskset for request in said.submitted]
    assert asked == ["sums@3", "sums@2", "sums", "sums@2"]
    status, _, err = await upcycle(where, "eval", file, "m", "--group", "2", "--trainable")
    assert (status, said.submitted[-1].spec.taskset) == (0, "sums@3"), err
    assert " on sums (" in err


async def test_a_held_out_source_does_not_name_what_to_train_on(planner: tuple[Planner, Addresses]) -> None:
    said, where = planner
    said.runs = [evaluation("run-b", "judge")]
    status, _, err = await upcycle(where, "train", "m", "--from", "run-b", "--detach")
    assert status == 2
    assert "'judge', which is not of split train" in err
    assert not said.submitted


async def test_what_the_planner_refuses_is_printed(planner: tuple[Planner, Addresses]) -> None:
    said, where = planner
    said.runs, said.refusal = [evaluation("run-a")], "run-a is trained already by run-0"
    status, _, err = await upcycle(where, "train", "m", "--from", "run-a", "--detach")
    assert status == 2  # nothing has begun
    assert "upcycle: run-a is trained already by run-0\n" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("m --from run-a --sft talks.jsonl", "--from: for GRPO over a taskset, not for SFT"),
        ("m --from run-a --sft-from run-b", "--from: for GRPO over"),
        ("m --no-sampling --sft-from run-b", "--no-sampling: for GRPO over"),
        ("--attach run-t --from run-a", "--attach follows"),
        ("--attach run-t --no-sampling", "--attach follows"),
        ("m --from run-a --group 1", "--group must be >= 2"),
        ("m --from run-a --no-step-groups -1", "--no-step-groups must be >= 0"),
        ("--from run-a m", "MODEL before --from"),
    ],
)
async def test_options_that_cannot_be_meant_are_refused_without_a_platform(
    tmp_path: Path, options: str, said: str
) -> None:
    status, _, err = await upcycle(None, "train", *options.split(), cwd=tmp_path)
    assert status == 2, err
    assert said in err


async def test_a_run_that_learns_nothing_says_so_and_its_reason_is_one_line(
    planner: tuple[Planner, Addresses],
) -> None:
    said, where = planner
    flat = ts.RunCounts(groups_by_outcome={"excluded(zero_spread)": 30, "released(zero_spread)": 20})
    source = ts.SourceReport(run_id="run-a", groups=20, left_out={"zero_spread": 20})
    notice = "50 of 50 groups had no spread (every reward was 0.000)"
    going = training("run-t", counts=flat, sources=[source], notice=notice)
    failed = training("run-t", counts=flat, sources=[source], state=ts.RUN_STATE_FAILED, failure=LONG)
    said.runs, said.watched = [going], [going, failed]
    status, out, err = await upcycle(where, "train", "--attach", "run-t")
    assert status == 1
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: {notice}"]
    account = "groups 50: 50 no spread; from run-a 0/20 groups trained, 20 no spread"
    assert [line.strip() for line in err.splitlines()].count(account) == 1  # before any step
    assert f"run-t is failed: {LONG}" in err.splitlines()
    assert LONG in out.splitlines()[0]
    assert out.splitlines()[2:] == ["groups 50: 50 no spread", "from run-a 0/20 groups trained, 20 no spread"]


async def test_a_run_without_a_limit_is_not_ended_early(planner: tuple[Planner, Addresses]) -> None:
    said, where = planner
    spec = training("run-t").spec
    spec.training.steps = 0
    said.runs = [evaluation("run-e"), training("run-t", spec=spec), training("run-s")]
    said.watched = [training("run-t", spec=spec, step=7, state=ts.RUN_STATE_COMPLETED)]
    status, out, _ = await upcycle(where, "train", "--attach", "last")  # the newest that trains
    assert status == 0
    assert out.startswith("run-t: 7 steps, v0,")


async def test_an_evaluation_that_may_train_plays_the_newest_weights_and_names_who_draws(
    planner: tuple[Planner, Addresses],
) -> None:
    said, where = planner
    done = evaluation("run-e")
    done.spec.trainable = True
    said.answer, said.watched = done, [done]
    status, out, err = await upcycle(where, "eval", "sums", "m", "--group", "4", "--trainable")
    assert status == 0, err
    spec = said.submitted[0].spec
    assert (spec.trainable, spec.policy.channel, spec.group_size) == (True, common.CHANNEL_LATEST, 4)
    assert out.splitlines()[-1].startswith("no running training run of m on sums draws from it; ")
    assert out.splitlines()[-1].endswith("upcycle train m --from run-e")

    drawn = ts.SourceReport(run_id="run-e", groups=12, trained=5, offered=1, left_out={"stale": 6})
    over = training("run-o", state=ts.RUN_STATE_COMPLETED, sources=[drawn])
    said.runs = [over, training("run-t", sources=[drawn])]
    _, out, _ = await upcycle(where, "eval", "sums", "m", "--group", "4", "--trainable", "--channel", "head")
    assert said.submitted[1].spec.policy.channel == common.CHANNEL_HEAD
    assert out.splitlines()[-1] == ("run-t draws from it: from run-e 5/12 groups trained, 6 stale, 1 waiting")
    _, out, _ = await upcycle(where, "eval", "sums", "m", "--group", "4", "--trainable", "--json")
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert kinds == ["launch", "drawn_by", "done"]


async def test_an_evaluation_measures_head_and_does_not_train_unless_asked(
    planner: tuple[Planner, Addresses], tmp_path: Path
) -> None:
    said, where = planner
    said.answer, said.watched = evaluation("run-e"), [evaluation("run-e")]
    await upcycle(where, "eval", "sums", "m")
    assert not said.submitted[0].spec.trainable
    assert said.submitted[0].spec.policy.channel == common.CHANNEL_HEAD
    for group in ("1", "600"):
        arguments = ("eval", "sums", "m", "--trainable", "--group", group)
        status, _, err = await upcycle(None, *arguments, cwd=tmp_path)
        assert status == 2
        assert f"--trainable needs --group of 2 to 512, it is {group}" in err


def test_outcomes_are_summed_by_word_and_the_rest_is_other() -> None:
    outcomes = {"trained": 32, "excluded(zero_spread)": 10, "released(zero_spread)": 8, "excluded(stale)": 0}
    run = training("run-t", counts=ts.RunCounts(groups_by_outcome=outcomes))
    assert groups_text(run) == "groups 50: 32 trained, 18 no spread"
    assert groups_text(training("run-t")) == ""
    many = {"failed": 5, "trained": 1, "released(stale)": 3, "excluded(zero_spread)": 4, "cancelled": 2}
    mixed = training("r", counts=ts.RunCounts(groups_by_outcome=many))
    assert groups_text(mixed, 3) == "groups 15: 1 trained, 5 failed, 4 no spread, 5 other"
    source = ts.SourceReport(
        run_id="run-e", groups=64, trained=38, waiting=4, offered=2, left_out={"zero_spread": 20}
    )
    assert source_text(source) == "from run-e 38/64 groups trained, 20 no spread, 6 waiting"
    assert (
        counted({"other_environment": 1, "excluded(no_such_word)": 2})
        == "2 no such word, 1 other environment"
    )


def test_steps_with_and_without_a_limit() -> None:
    limited, endless = training("run-1", step=7), training("run-2", step=7)
    endless.spec.training.steps = 0
    assert (step_text(limited, 7), step_text(endless, 7)) == ("step 7/100", "step 7")
    table = run_table([limited, endless, evaluation("run-3")])
    (column,) = [one for one in table.columns if one.header == "steps"]  # type: ignore[attr-defined]
    assert list(column.cells) == ["7/100", "7/no limit", ""]


async def test_why_a_run_ended_before_its_last_step_is_shown_and_it_is_complete(
    planner: tuple[Planner, Addresses],
) -> None:
    said, where = planner
    why = "ended at step 57 of 100: every group had no" + " spread" * 30
    early = training("run-t", step=57, state=ts.RUN_STATE_COMPLETED, failure=why)
    said.runs, said.watched = [early], [early]
    status, out, err = await upcycle(where, "train", "--attach", "run-t")
    assert status == 0, err
    assert f"run-t is completed: {why}" in err.splitlines()
    assert out.splitlines()[0].endswith(f"episodes; {why}")
    status, out, _ = await upcycle(where, "runs")
    assert (status, out.splitlines()[-1]) == (0, f"run-t completed: {why}")


DEPLOYABLE = """
from upcycle import Environment, Taskset

env = Environment("shop")


@env.scenario("count")
async def count(item: str):
    answer = yield item
    yield 1.0 if answer == item else 0.0


train = Taskset("shop-train", [count(item="tea"), count(item="milk")])
held = Taskset("shop-held-out", [count(item="salt")], "held_out")
"""


async def test_a_run_on_what_was_deployed_plays_its_gate_with_it_too(
    planner: tuple[Planner, Addresses], tmp_path: Path
) -> None:
    said, where = planner
    (tmp_path / "tasks.py").write_text(DEPLOYABLE)
    digest = "d" * 64
    asked = ("--taskset", "tasks.py", "--taskset-name", "shop-train", "--gate", "shop-held-out", "--detach")
    status, _, err = await upcycle(where, "train", "m", *asked, "--deployed", digest, cwd=tmp_path)
    assert status == 0, err
    assert {one.name: one.environment.python.path for one in said.sent} == {
        "shop-train": f"deployed:{digest}",
        "shop-held-out": f"deployed:{digest}",
    }
    for arguments, refusal in (
        (("train", "m", "--taskset", "sums", "--deployed", digest), "'sums' is registered: it has its envi"),
        (("train", "m", *asked, "--deployed", "ddd"), "ddd"),
        (("train", "m", "--from", "run-a", "--deployed", digest), "--deployed is for a run that plays a"),
        (("eval", "sums", "m", "--deployed", digest), "'sums' is registered: it has its environment"),
    ):
        status, _, err = await upcycle(where, *arguments, cwd=tmp_path)
        assert (status, refusal in err) == (2, True), err
    assert len(said.submitted) == 1


def test_single_sessions_are_counted_where_a_run_begins_and_goes_on() -> None:
    source = ts.SourceReport(
        run_id="sessions-k", groups=9, trained=2, waiting=4, left_out={"stale": 3}, single=5
    )
    run = ts.Run(sources=[source])
    assert begun_lines(run) == [
        "from sessions-k: 6 of 9 groups can train, 5 of them single sessions; left out: 3 stale"
    ]
    assert source_text(source) == "from sessions-k 2/9 groups trained (5 single), 3 stale, 4 waiting"
