"""`python -m upcycle.importers.verifiers` with verifiers 0.1.14 and 0.4.0, without the platform."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.contract.verifiers.programs import LIBS, NAME, program, serving
from tests.packaging.venvs import clean_environment

from upcycle import Taskset
from upcycle.environment.channel import ChannelError, ControlChannel
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.script_player import FunctionPlayer
from upcycle.task_rows import Task

pytestmark = [pytest.mark.study, pytest.mark.timeout(900)]


def refused(python: Path, folder: Path, *options: str) -> str:
    """What it says instead of serving."""
    process = program(python, folder, *options)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    return said


CALLS: Final = [
    {"name": "double", "arguments": {"n": 3}},
    {"name": "double", "arguments": {"n": 1000}},
    {"name": "double", "arguments": {"x": 1}},
]


def reply(task: Task, messages: list[dict[str, object]]) -> object:
    """Three calls, of which two are wrong, then the answer; a wrong one for row 4."""
    if messages[-1]["role"] != "tool":
        return {"text": "I double it.", "tool_calls": CALLS}
    return "9" if task.args["row"] == 4 else str(2 * int(task.args["row"]))


async def play(task: Task) -> PlayedEpisode:
    """Where its environment is served."""

    async def ended_how() -> str:
        return "it hung up"

    channel = await ControlChannel.connect(task.environment.url)
    await channel.hello()
    try:
        environment, player = OpenEnvironment(channel, ended_how), FunctionPlayer(reply, task, "reply")
        return await play_episode(task, environment, player, PlayLimits(), EpisodeOpened())
    finally:
        await channel.close()


async def test_rows_are_tasks_with_tools_and_the_rubric_is_the_reward(
    python: Path, folder: Path, served_version: str
) -> None:
    path = folder / "tasks.jsonl"
    with serving(python, folder, "--tasks", str(path)) as url:
        tasks = Taskset.from_file(path)
        assert (tasks.environment.url, tasks.environment.name, len(tasks)) == (url, NAME, 5)
        assert (tasks.split, tasks.tasks[3].slug) == ("train", "train-000003")
        played = [await play(task) for task in tasks.tasks[3:]]
    right, wrong = played
    assert [one.result.score for one in played if one.result] == pytest.approx([1.0, 0.2])
    assert [message["content"] for message in right.prompt] == ["Answer with a number.", "3 + 3?"]
    _check_tools(right, served_version)
    assert right.result is not None
    assert {one.name: (one.value, one.weight) for one in right.result.subscores} == {
        "exact": (1.0, 0.8),
        "short": (1.0, 0.2),
    }
    info = right.result.info
    counted = info["metrics"]["double_calls"] if served_version == "0.1.14" else info["measured"]["called"]
    assert counted == (3 if served_version == "0.1.14" else 2)
    assert wrong.result is not None
    assert not wrong.result.success


def _check_tools(played: PlayedEpisode, version: str) -> None:
    (tool,) = (one["function"] for one in played.tools)
    assert (tool["name"], tool["parameters"]["properties"]["n"]["type"]) == ("double", "integer")
    texts = [call.result for call in played.transcript.tool_calls]
    assert texts[0] == "6"
    assert "too large" in texts[1]
    assert ("unexpected keyword argument 'x'" if version == "0.1.14" else "Field required") in texts[2]


async def test_a_row_that_is_another_one_now_is_refused(python: Path, folder: Path) -> None:
    with serving(python, folder) as url:
        channel = await ControlChannel.connect(url)
        await channel.hello()
        (scenario,) = await channel.list_tasks()
        assert set(scenario["args"]["properties"]) == {"row", "split", "content"}
        for arguments, said in (
            ({"row": 0, "content": "another"}, "its data set has changed"),
            ({"row": 5}, "train has 5 rows, and no row 5"),
            ({"row": 0, "split": "test"}, "no split 'test'"),
        ):
            with pytest.raises(ChannelError, match=said):
                await channel.start("row", arguments)
        assert await channel.start("row", {"row": 1})
        await channel.close()


async def test_a_judge_that_is_away_is_no_reward_of_zero(
    python: Path, folder: Path, served_version: str
) -> None:
    options = ("--args", '{"kind": "judged"}') if served_version == "0.1.14" else ()
    with serving(python, folder, *options) as url:
        channel = await ControlChannel.connect(url)
        await channel.hello()
        await channel.start("row", {"row": 0})
        with pytest.raises(ChannelError, match="no judge today") as failed:
            await channel.grade("no judge")
        assert failed.value.error_kind == "external_failure"
        await channel.close()


REFUSED: Final = {
    "0.1.14": {
        "chatty": "sums_of_others is a Chatty, which answers each turn of the agent by its own env_response",
        "group": "its rubric compares the rollouts of a group",
        "heavy": "its weights are 0.8, 0.2, -0.5: rewards may be from -0.5 to 1",
        "rows": "row 0 of train has tools of its own",
    },
    "0.4.0": {
        "image": "task 0 of sums_of_others needs an image",
        "user": "task 0 of sums_of_others has no prompt",
        "no": "verifiers does not load 'sums_of_others'",
    },
}


def test_what_the_channel_cannot_say_is_refused_by_name(
    python: Path, folder: Path, served_version: str
) -> None:
    for kind, said in REFUSED[served_version].items():
        arguments = {"unknown": 1} if kind == "no" else {"kind": kind}
        assert said in refused(python, folder, "--args", json.dumps(arguments)), kind
    assert "give --reward-range" not in refused(python, folder, "--reward-range", "1", "0")


DATA_SETS: Final = """
import sys
from pathlib import Path

from datasets import Dataset, DatasetDict
from upcycle import Taskset
from upcycle.errors import TasksetInvalid
from upcycle.importers.files import rows_of_file
from upcycle.task_rows import EnvironmentRef

rows = [{"id": n, "question": f"{n}?", "labels": [n, None], "deep": {"a": n / 2}} for n in range(3)]
loaded, where = Dataset.from_list(rows), EnvironmentRef("quiz", url="tcp://h:1")
made = Taskset.from_dataset(loaded, "quiz", scenario="ask", environment=where, ids="id")
assert made.tasks[2].slug == "2"
assert made.tasks[2].args == {"question": "2?", "labels": [2, None], "deep": {"a": 1.0}}
try:
    Taskset.from_dataset(DatasetDict(train=loaded), "quiz", scenario="ask", environment=where)
except TasksetInvalid as error:
    assert "pass its rows" in str(error), error
loaded.to_parquet("quiz.parquet")
assert [dict(row.cells) for row in rows_of_file(Path("quiz.parquet"))] == rows
Path("no.parquet").write_bytes(b"PAR1")
try:
    list(rows_of_file(Path("no.parquet")))
except TasksetInvalid as error:
    assert "no.parquet: not Parquet" in str(error), error
print("done")
"""


def test_a_loaded_data_set_and_a_parquet_file_are_tasks(
    python: Path, folder: Path, served_version: str
) -> None:
    if served_version != "0.1.14":
        pytest.skip("only verifiers 0.1.14 brings datasets and pyarrow")
    done = subprocess.run(
        [python, "-c", DATA_SETS],
        cwd=folder,
        env={**clean_environment(), "PYTHONPATH": str(LIBS), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr
