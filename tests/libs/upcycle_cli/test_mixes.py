"""`--mix`: its tasks files are registered before the run, and what the gate leaves out is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.libs.upcycle_cli.planner import Planner, serving

from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.cli import trajectories
from upcycle.cli.mixes import gate_line, registered_mix
from upcycle.cli.tasksets import AmbiguousTaskset
from upcycle.reporting.mix_texts import mix_lines
from upcycle.run_config import Gate, PolicyChoice, Purpose, RunSpec

TASKS = """
from upcycle import Environment, Taskset

env = Environment("words")


@env.scenario("spell")
async def spell(word: str):
    answer = yield word
    yield float(answer == word[::-1])


one = Taskset("words", [spell.task(word="pool")], split="train")
"""


class Tasksets:
    """Every taskset is in its second revision."""

    async def RegisterTaskset(self, request: Any, timeout: float = 0) -> pb.RegisterTasksetResponse:
        return pb.RegisterTasksetResponse(name=request.taskset.name, revision=2)

    async def GetTaskset(self, request: Any, timeout: float = 0) -> pb.GetTasksetResponse:
        return pb.GetTasksetResponse()


PLATFORM: Any = SimpleNamespace(tasksets=Tasksets())


async def test_a_tasks_file_is_registered_and_a_name_stays(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(TASKS)
    asked = (f"{tmp_path}/words.py:share=0.25", "incidents:share=1/3")
    assert await registered_mix(PLATFORM, asked, exact=True) == ("words@2:share=0.25", "incidents:share=1/3")
    assert (await registered_mix(PLATFORM, asked, exact=False))[0] == "words:share=0.25"


async def test_a_file_of_several_tasksets_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TASKS + 'two = Taskset("more", [spell.task(word="disk")])\n')
    with pytest.raises(AmbiguousTaskset, match=r"--mix: .*defines 2 tasksets") as caught:
        await registered_mix(PLATFORM, (f"{tmp_path}/two.py:share=0.25",), exact=True)
    assert "then --mix NAME:share=SHARE" in caught.value.hint


def test_what_the_gate_does_not_judge_is_said() -> None:
    run = RunSpec("sums", Purpose.TRAIN, PolicyChoice("m"), mix=("words@2:share=0.5",))
    assert gate_line(run) == ""
    gated = RunSpec("sums", Purpose.TRAIN, PolicyChoice("m"), mix=run.mix, gate=Gate("sums-held"))
    assert gate_line(gated) == (
        "gate: sums-held alone decides; what the run does to the tasks of words is not judged: follow it on "
        "held-out tasks of each with --track"
    )
    assert gate_line(RunSpec("sums", Purpose.TRAIN, PolicyChoice("m"), gate=Gate("sums-held"))) == ""


def test_each_taskset_of_a_run_has_a_line() -> None:
    own = ts.MixedTaskset(taskset="sums", share=0.75, groups=9, trained=8, left_out=1, left_out_in_a_row=1)
    own.episodes, own.reward_mean, own.success_rate = 72, 0.5, 0.25
    other = ts.MixedTaskset(taskset="words@2", share=1 / 4, groups=3, left_out=3, left_out_in_a_row=3)
    assert mix_lines(ts.Run(mix=[own, other])) == [
        "sums (0.75 of the groups): 9 groups, 8 trained, 1 left out, reward 0.500, "
        "success 25.0% of 72 episodes",
        "words (0.25 of the groups): 3 groups, 0 trained, 3 left out, the last 3 in a row",
    ]
    assert mix_lines(ts.Run()) == []


def test_a_list_of_trajectories_names_the_taskset_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trajectories, "result_console", lambda: Console(width=200))
    listed = [
        TrajectorySummary(episode=EpisodeIdentity(trajectory_id="t1", task_slug="a", taskset="sums")),
        TrajectorySummary(episode=EpisodeIdentity(trajectory_id="t2", task_slug="b", taskset="words@2")),
    ]
    trajectories._print_table(listed)
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["trajectory", "taskset", "task"]
    assert (first.split()[:3], second.split()[:3]) == (["t1", "sums", "a"], ["t2", "words@2", "b"])
    trajectories._print_table(listed[:1])
    assert "sums" not in capsys.readouterr().out


async def test_a_mix_is_submitted_as_it_was_typed() -> None:
    """From the flag to the request."""
    from upcycle.cli.train import View, _launched
    from upcycle.platform import Platform

    spec = RunSpec("sums", Purpose.TRAIN, PolicyChoice("m"), mix=("words:share=1/3",))
    planner = Planner()  # type: ignore[abstract]
    async with serving(planner) as addresses, Platform(addresses) as platform:
        await _launched(platform, spec, View(detach=True))
    assert list(planner.submitted[0].spec.mix) == ["words:share=1/3"]
