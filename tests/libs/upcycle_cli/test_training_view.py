"""Curves, verdicts and conversations: what needs no service."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.waiting import until

from upcycle.api.registry.v1.registry_pb2 import (
    CHECKPOINT_STATE_HELD,
    CHECKPOINT_STATE_PROMOTED,
    Checkpoint,
    GateReport,
)
from upcycle.api.taskset.v1.taskset_pb2 import (
    RUN_STATE_PAUSED,
    Run,
    RunCounts,
    RunSpec,
    SourceReport,
    TrackedRate,
    TrainingConfig,
)
from upcycle.api.training.v1.training_pb2 import StepPoint, TrainingAlarm, TrainingMetrics
from upcycle.cli.progress_view import Lines, curves, dashboard, dashboard_of
from upcycle.cli.run_follower import (
    AlarmRaised,
    RunChanged,
    Stepped,
    TrainingProgress,
    is_new_verdict,
    tracking_events,
)
from upcycle.cli.sft import SftCall, SftRefused, conversations_in, planned
from upcycle.cli.sft_steps import shown
from upcycle.cli.sparkline import sparkline
from upcycle.cli.tracked_sets import done_lines, epoch_record, newest_rates, rate_text, tracking_line
from upcycle.train import StepResult


def point(step: int, **values: float) -> StepPoint:
    return StepPoint(step=step, version=step, metrics=TrainingMetrics(values=values, staleness={1: 3, 3: 1}))


def test_a_sparkline_spans_its_values_and_averages_what_does_not_fit() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([5, 5], 10) == "▁▁"
    assert sparkline([float("nan"), 1, 2], 10) == "▁█"
    assert sparkline([], 10) == ""
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_curves_hold_what_was_measured_and_the_held_out_success_of_checkpoints() -> None:
    points = [point(1, reward_mean=0.25, entropy=2.0), point(2, reward_mean=0.5)]
    judged = [
        Checkpoint(step=2, gate=GateReport(candidate_rate=0.5)),
        Checkpoint(step=1, gate=GateReport(candidate_rate=0.25)),
        Checkpoint(step=3),
    ]
    found = {name: (values, last) for name, values, last in curves(points, judged)}
    assert found == {
        "reward": ([0.25, 0.5], "0.500"),
        "held-out": ([0.25, 0.5], "50.0%"),
        "entropy": ([2.0], "2.000"),
        "staleness": ([1.5, 1.5], "1.5"),
    }


def test_a_learning_rate_is_a_curve_where_it_bends() -> None:
    flat = [point(step, learning_rate=1e-3) for step in (1, 2)]
    assert "learning rate" not in {name for name, _, _ in curves(flat, [])}
    bent = [point(step, learning_rate=step * 1e-3) for step in (1, 2)]
    assert ("learning rate", [1e-3, 2e-3], "2.00e-03") in curves(bent, [])


def test_a_terminal_shows_curves_alarms_and_the_state_of_the_run() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    spec = RunSpec(training=TrainingConfig(steps=9))
    progress = TrainingProgress(Run(run_id="run-1", spec=spec, state=RUN_STATE_PAUSED, step=2))
    alarm = TrainingAlarm(kind="no_eos", text="they do not stop")
    with dashboard(console) as show:
        for number in (1, 2):
            progress.points[number] = point(number, reward_mean=number / 2)
            show(progress, Stepped(progress.points[number]))
        progress.alarms[alarm.kind] = alarm
        show(progress, AlarmRaised(alarm))
        show(progress, RunChanged(progress.run))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("run-1", "paused", "step 2/9", "staleness 1.5", "▁█", "1.000", "they do not stop"):
        assert part in text


def test_groups_stand_in_the_title_and_the_planners_notice_is_a_warning() -> None:
    counts = RunCounts(groups_by_outcome={"excluded(zero_spread)": 50})
    source = SourceReport(run_id="run-e", groups=20, left_out={"zero_spread": 20})
    spec = RunSpec(training=TrainingConfig(steps=0))
    notice = "50 of 50 groups had no spread"
    flat = Run(run_id="run-1", spec=spec, counts=counts, sources=[source], notice=notice)
    text = rendered(flat)
    assert "step 0  v0  groups 50: 50 no spread" in text.splitlines()[0]
    assert text.splitlines()[1].startswith("episodes 0 ended · 0 errors · 0 in play · 0 in grading")
    assert notice in text
    assert "from run-e 0/20 groups trained, 20 no spread" in text
    counts.groups_by_outcome["trained"] = 4
    text = rendered(Run(run_id="run-1", spec=spec, counts=counts, step=1))
    assert "groups 54: 4 trained, 50 no spread" in text.splitlines()[0]
    assert "warning" not in text
    assert notice in rendered(Run(run_id="run-1", spec=spec, counts=counts, step=1, notice=notice))
    counts.groups_by_outcome.update({"failed": 3, "cancelled": 2, "excluded(stale)": 1})
    title, _, below, *_ = rendered(Run(run_id="run-1", spec=spec, counts=counts)).splitlines()
    assert "groups 60: 4 trained, 50 no spread, 3 failed, 3 other" in title
    assert below.strip() == "groups 60: 4 trained, 50 no spread, 3 failed, 2 cancelled, 1 stale"


async def test_lines_say_how_groups_ended_before_any_step_and_at_a_bounded_rate() -> None:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    assert isinstance(console.file, io.StringIO)
    lines = Lines(console, every_s=4.0)  # within it, the machine may pause
    progress = TrainingProgress(Run(run_id="run-1"))
    for ended in range(6):
        flat = RunCounts(groups_by_outcome={"excluded(zero_spread)": ended})
        progress.run = Run(run_id="run-1", counts=flat, notice=f"{ended} of {ended}" if ended else "")
        lines(progress, RunChanged(progress.run))
    printed = console.file.getvalue().splitlines()
    assert [line for line in printed if "groups" in line] == ["  groups 1: 1 no spread"]
    assert [line for line in printed if "warning" in line] == [
        f"warning: {number} of {number}" for number in (1, 2, 4)
    ]
    file = console.file
    await until(lambda: "groups 5: 5 no spread" in file.getvalue())
    assert file.getvalue().count("groups") == 2
    lines.close()


def rendered(run: Run) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    console.print(dashboard_of(TrainingProgress(run), 160))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "is not JSON"),
        ("[]", "has neither"),
        ('{"messages": "hello"}', "has neither"),
        ('{"prompt": [{"role": "user", "content": "q"}]}', "has neither"),
        ('{"messages": [{"role": "user", "content": "q"}]}', "no assistant message"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str, wrong: str) -> None:
    good = {"messages": [{"role": "assistant", "content": "a"}]}
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + line + "\n")
    with pytest.raises(SftRefused, match=f"talks.jsonl:3 .*{wrong}"):
        list(conversations_in(path))


def test_each_epoch_sees_everything_once_in_an_order_of_its_own() -> None:
    inputs = [f"t{number}" for number in range(10)]
    plan = planned(inputs, "run-1", 4, SftCall(epochs=2))
    assert [len(batch) for batch in plan.batches] == [4, 4, 2] * 2
    first, second = (sum((list(b) for b in plan.batches[at : at + 3]), list[Any]()) for at in (0, 3))
    assert sorted(first) == sorted(second) == inputs
    assert first != second
    assert planned(inputs, "run-1", 4, SftCall(epochs=2)) == plan
    assert len(planned(inputs, "run-1", 4, SftCall(steps=2)).batches) == 2
    with pytest.raises(SftRefused, match="no conversation to train on"):
        planned([], "empty.jsonl", 16, SftCall())


GOOD = json.dumps({"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "ü"}]})


@pytest.mark.parametrize("num_bytes", [1, 60, len(GOOD.encode()) - 1])
def test_a_last_line_that_its_writer_did_not_finish_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_bytes: int
) -> None:
    path = tmp_path / "talks.jsonl"
    whole = f"{GOOD}\n{GOOD}\n".encode()
    path.write_bytes(whole + GOOD.encode()[:num_bytes])
    assert [one.name for one in conversations_in(path)] == ["talks.jsonl:1", "talks.jsonl:2"]
    assert capsys.readouterr().err == "line 3, the last one of talks.jsonl, is cut off: it is left out\n"


def test_a_cut_character_at_the_end_is_a_cut_line_and_elsewhere_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    cut = json.dumps({"messages": [{"role": "assistant", "content": "é"}]}, ensure_ascii=False).encode()
    cut = cut[: cut.index("é".encode()) + 1]
    path.write_bytes(GOOD.encode() + b"\n" + cut)
    assert len(list(conversations_in(path))) == 1
    path.write_bytes(cut + b"\n" + GOOD.encode())
    with pytest.raises(SftRefused, match=r"talks\.jsonl:1 is not UTF-8"):
        list(conversations_in(path))


def test_a_file_of_a_cut_line_alone_and_a_damaged_whole_line_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(GOOD[:20])
    with pytest.raises(
        SftRefused, match=r"holds no conversation.*line 1, the last one of talks.jsonl, is cut"
    ):
        list(conversations_in(path))
    path.write_text(f"{GOOD[:20]}\n{GOOD}\n")
    with pytest.raises(SftRefused, match=r"talks\.jsonl:1 is not JSON"):
        list(conversations_in(path))
    path.write_text(f'{GOOD}\n{{"a": 1, "a": 2}}')  # whole, and wrong
    with pytest.raises(SftRefused, match=r"talks\.jsonl:2 is not JSON: 'a' is there twice"):
        list(conversations_in(path))


async def test_steps_are_lines_at_a_bounded_rate_in_order_with_other_events() -> None:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    assert isinstance(console.file, io.StringIO)
    lines = Lines(console, every_s=3600.0)
    progress = TrainingProgress(Run(run_id="run-1"))
    for step in range(1, 51):
        lines(progress, Stepped(point(step, reward_mean=step / 100)))
    lines(progress, AlarmRaised(TrainingAlarm(kind="mismatch_kl", text="too far")))
    for step in range(51, 61):
        lines(progress, Stepped(point(step)))
    lines.close()
    printed = [line.split()[:2] for line in console.file.getvalue().splitlines()]
    assert printed == [["step", "1"], ["step", "50"], ["alarm", "mismatch_kl:"], ["step", "60"]]


async def test_steps_of_sft_are_bounded_too_and_the_last_one_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("upcycle.cli.live_view.LINES_EVERY_S", 3600.0)
    plan = planned([f"t{number}" for number in range(40)], "run-1", 1, SftCall())
    result = StepResult(
        step=1,
        version=7,
        checkpoint_id="c",
        is_head=False,
        metrics={"loss": 0.5},
        sampler_path="",
        state_path="",
        model="m",
    )
    with shown(plan, "m", as_json=False) as show:
        for number in range(1, 41):
            show(number, result)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/40", "40/40"]


def test_a_verdict_is_shown_again_when_people_confirmed_more_and_when_it_is_promoted() -> None:
    progress = TrainingProgress(Run(run_id="run-1"))
    held = Checkpoint(checkpoint_id="c", run_id="run-1", state=CHECKPOINT_STATE_HELD, reason="held: 0 of 2")
    assert is_new_verdict(progress, held)
    progress.verdicts["c"] = held
    assert not is_new_verdict(progress, held)
    more = Checkpoint(checkpoint_id="c", run_id="run-1", state=CHECKPOINT_STATE_HELD, reason="held: 1 of 2")
    promoted = Checkpoint(checkpoint_id="c", run_id="run-1", state=CHECKPOINT_STATE_PROMOTED)
    assert is_new_verdict(progress, more)
    assert is_new_verdict(progress, promoted)
    promoted.run_id = "run-2"
    assert not is_new_verdict(progress, promoted)


def tracked(step: int, rate: float, **fields: Any) -> TrackedRate:
    known = {"state": "played", "low": rate - 0.1, "high": rate + 0.1, "reward_mean": 0.7, "drift_kl": 0.02}
    return TrackedRate(
        taskset="held@2", step=step, version=step, rate=rate, epoch=step / 4, **{**known, **fields}
    )


def test_each_measured_version_is_said_once_beside_reward_and_drift() -> None:
    progress = TrainingProgress(
        Run(tracked=[tracked(2, 0.5), TrackedRate(taskset="held", step=4, state="due")])
    )
    (first,) = tracking_events(progress)
    assert tracking_line(first) == (  # type: ignore[arg-type]
        "tracked v2: held 50.0% [40.0%, 60.0%] at step 2  reward 0.700  drift 2.00e-02"
    )
    assert list(tracking_events(progress)) == []
    fell = tracked(4, 0.3, dropped=True)
    progress.run = Run(
        run_id="run-1", tracked=[tracked(2, 0.5), fell], tracking_alarms=["reward up, benchmark not"]
    )
    said = [tracking_line(event) for event in tracking_events(progress)]  # type: ignore[arg-type]
    assert said[0].endswith("drift 2.00e-02  dropped")
    assert said[1:] == ["alarm reward up, benchmark not"]
    assert list(tracking_events(progress)) == []


def test_steps_and_curves_carry_the_newest_rate_and_epochs_the_names_of_others() -> None:
    run = Run(
        run_id="run-1", tracked=[tracked(2, 0.5), tracked(4, 0.3), TrackedRate(step=6, state="playing")]
    )
    assert {name: rate_text(rate) for name, rate in newest_rates(run).items()} == {
        "held": "held 30.0% [20.0%, 40.0%] at step 4"
    }
    assert epoch_record(run.tracked[1]) == {
        "epoch": 1.0,
        "grpo_reward_mean": 0.7,
        "held_score": 0.3,
        "kl_divergence": 0.02,
    }
    assert done_lines(run)[-1] == "1 version is still measured: upcycle train --attach run-1"
    console = Console(file=io.StringIO(), width=120)
    console.print(dashboard_of(TrainingProgress(run), 120))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "held" in shown
    assert "30.0% [20.0%, 40.0%] at step 4" in shown


def test_a_line_of_a_step_carries_the_newest_rates() -> None:
    async def printed() -> str:
        out = io.StringIO()
        lines = Lines(Console(file=out, width=200), every_s=0.0)
        progress = TrainingProgress(Run(run_id="run-1", tracked=[tracked(2, 0.5)]))
        lines(progress, Stepped(point(3, reward_mean=0.5)))
        lines.close()
        return out.getvalue()

    assert "held 50.0% [40.0%, 60.0%] at step 2" in asyncio.run(printed())
