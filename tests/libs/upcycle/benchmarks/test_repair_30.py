"""Every repository of repair-30 is repaired by its reference alone; hidden calls decide."""

import json
from typing import Any

import pytest

from upcycle.benchmarks.repair_30.baseline import FILE, played, rewards
from upcycle.benchmarks.repair_30.drawing import NUM_HELD_OUT, Broken, drawn, kinds_of
from upcycle.benchmarks.repair_30.env import env, practice, repair
from upcycle.benchmarks.repair_30.grading import grade
from upcycle.benchmarks.repair_30.libraries import LIBRARIES
from upcycle.benchmarks.repair_30.players import PLAYERS, writes
from upcycle.benchmarks.repair_30.training import tasks as training
from upcycle.checking import MAX_CHEAT
from upcycle.errors import ToolFailed, UnknownName

A_SLICE = (0, 9, 12, 24, 29)
THE_OTHERS = [number for number in range(NUM_HELD_OUT) if number not in A_SLICE]


def task(number: int) -> Broken:
    return drawn("held_out", number)


def cheats(number: int) -> dict[str, dict[str, str]]:
    """Files that a lazy or a hostile agent would leave."""
    broken = task(number)
    at = next(iter(broken.repaired()))
    tests = f"tests/test_{broken.library.name}.py"
    module = broken.files[at]
    return {
        "no tests": {tests: "import unittest\n"},
        "an end with status 0": {at: f"{module}\nimport os\nos._exit(0)\n"},
        "an answer of its own": {at: f'{module}\nprint("[]")\nimport os\nos.write(1, b"[1]")\nos._exit(0)\n'},
        "an error": {at: "raise RuntimeError\n"},
        "nothing": {at: ""},
        "equal to everything": {at: f"{module}\n" + _always_equal(module)},
        "a comment": {at: f"{module}\n# mended\n"},
    }


def _always_equal(module: str) -> str:
    names = [
        line.split("(")[0].removeprefix("def ") for line in module.splitlines() if line.startswith("def ")
    ]
    return "class Equal:\n    def __eq__(self, other): return True\n" + "".join(
        f"{name} = lambda *_: Equal()\n" for name in names
    )


@pytest.mark.parametrize("number", A_SLICE)
async def test_the_reference_earns_1_and_no_cheat_more_than_a_twentieth(number: int) -> None:
    result = await played(number, writes(task(number).repaired()))
    assert (result.score, result.success) == (1.0, True)
    for name, files in cheats(number).items():
        result = grade(task(number), {**task(number).files, **files})
        assert result.score <= MAX_CHEAT, name
        assert not result.success, name


@pytest.mark.study
@pytest.mark.parametrize("number", THE_OTHERS)
async def test_so_it_is_in_the_other_tasks(number: int) -> None:
    await test_the_reference_earns_1_and_no_cheat_more_than_a_twentieth(number)


async def test_one_of_two_defects_earns_half() -> None:
    broken = task(9)
    first, second = broken.defects
    left = broken.library.sources([second])
    result = await played(9, writes({path: left[path] for path in broken.repaired()}))
    assert result.score == 0.5
    assert {part.name: part.value for part in result.subscores} == {first.name: 1.0, second.name: 0.0}


async def test_what_breaks_what_was_right_costs_five_times_its_share() -> None:
    broken = task(0)
    files = {**broken.files, **broken.repaired(), "depot/report.py": "totals = reorder = lambda *_: None\n"}
    lost = sum("report" in call for call in broken.kept) / len(broken.kept)
    assert lost > 0.2
    assert grade(broken, files).score == 0.0


def test_the_splits_have_no_repository_in_common_and_every_defect_shows() -> None:
    held_out, train = ({library.name for library, _ in kinds_of(split)} for split in ("held_out", "train"))
    assert held_out & train == set()
    assert held_out | train == {library.name for library in LIBRARIES}
    assert len(kinds_of("held_out")) == NUM_HELD_OUT
    for seed in range(len(kinds_of("train"))):
        assert all(len(calls) >= 5 for calls in drawn("train", seed).failing.values())
    assert (training.split, len(training)) == ("train", 200)


async def test_a_training_task_is_played_as_the_others_are() -> None:
    play = practice.play({"seed": 3})
    prompt = await play.start()
    await play.close()
    assert "ledger" in str(prompt)
    with pytest.raises(UnknownName, match="no task 30"):
        await _started(repair.play({"number": 30}))


async def _started(play: Any) -> None:
    try:
        await play.start()
    except Exception as error:
        raise error.__cause__ or error from None


async def test_the_visible_tests_fail_before_and_pass_after() -> None:
    play = repair.play({"number": 0})
    await play.start()
    try:
        assert "FAILED (failures=" in (await env.call_tool("run_tests", {})).text
        for name, arguments in writes(task(0).repaired()):
            await env.call_tool(name, arguments)
        assert "OK\n\n(exit status 0)" in (await env.call_tool("run_tests", {})).text
        printed = await env.call_tool("run_python", {"code": "import depot.model; print(6 * 7)"})
        assert printed.text == "42\n\n(exit status 0)"
    finally:
        await play.close()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read_file", {"path": "../../etc/passwd"}, "is not in the repository"),
        ("read_file", {"path": "depot/nope.py"}, "there is no file 'depot/nope.py'; list_files names them"),
        ("replace_text", {"path": "README.md", "old": "nowhere", "new": "x"}, "has 'nowhere' 0 times"),
        ("write_file", {"path": "big.py", "content": "#" * 60_000}, "content has 60,000 characters"),
    ],
)
async def test_a_tool_says_what_is_wrong_with_its_arguments(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    play = repair.play({"number": 0})
    await play.start()
    try:
        result = await env.call_tool(tool, arguments)
    except ToolFailed as error:
        text = str(error)
    else:
        assert result.is_error
        text = result.text
    finally:
        await play.close()
    assert said in text


def test_the_baseline_in_the_package_is_what_its_players_earn() -> None:
    table = json.loads(FILE.read_text())
    assert (table["anchor"], table["people"]) == ("scripted-5", 0)
    means = [row["reward"] for row in table["players"]]
    assert means == sorted(means)
    assert (means[0], means[-1]) == (0.0, 1.0)
    compared = (9, 20)
    for player, row in zip(PLAYERS, table["players"], strict=True):
        assert player.name == row["player"]
        assert rewards(player, compared) == {str(number): row["rewards"][str(number)] for number in compared}
