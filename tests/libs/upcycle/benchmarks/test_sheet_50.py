"""Every task of sheet-50 is solved by its reference alone, and by none of the cheap ways to seem to."""

import json
from typing import Any

import pytest

from upcycle.benchmarks.sheet_50.baseline import FILE, played, rewards
from upcycle.benchmarks.sheet_50.book import cell_name
from upcycle.benchmarks.sheet_50.env import NUM_TASKS, drawn, workbook
from upcycle.benchmarks.sheet_50.families import KINDS
from upcycle.benchmarks.sheet_50.players import PLAYERS, calls_of
from upcycle.benchmarks.sheet_50.problems import Problem, problem_of, variants_of
from upcycle.benchmarks.sheet_50.reference import Calls, reference_calls
from upcycle.benchmarks.sheet_50.tasks import tasks
from upcycle.checking import MAX_CHEAT
from upcycle.errors import TasksetInvalid, UpcycleError
from upcycle.tasks import Taskset

FIRST_OF_EACH_KIND = range(len(KINDS))
THE_OTHERS = range(len(KINDS), NUM_TASKS)
TYPIST = next(one for one in PLAYERS if one.name == "typist")


def problem(number: int) -> Problem:
    return problem_of(*drawn(number))


def everywhere(number: int, value: Any) -> Calls:
    """One content in each cell that is asked for."""
    calls = reference_calls(problem(number))
    return tuple(
        (name, {**given, "rows": [[value] * len(row) for row in given["rows"]]}) for name, given in calls
    )


def raw_rows(number: int) -> list[list[Any]]:
    return [list(row) for row in problem(number).sheets["Raw"][1:]]


def cheats(number: int) -> dict[str, Calls]:
    """Ways to earn something for nothing."""
    made = {name: everywhere(number, value) for name, value in (
        ("zeros", 0), ("text", "x"), ("a formula of nothing", "=1"), ("an error", "=1/0"),
        ("the cell at the top", "=A2"), ("a sum of all", "=SUM(B2:B17)"),
    )}  # fmt: skip
    if problem(number).table is None:
        made["values where formulas are asked for"] = calls_of(TYPIST, number)
        made["formulas of the values"] = tuple(
            (name, {**given, "rows": [[_frozen(row[0])] for row in given["rows"]]})
            for name, given in calls_of(TYPIST, number)
        )
    else:
        rows = raw_rows(number)
        write = {"sheet": "Clean", "start": "A2"}
        made["the raw rows"] = (("write_cells", {**write, "rows": rows}),)
        right = [list(row) for row in (problem(number).table or _never()).rows]
        wrong = [[f"{row[0]} {at}", *row[1:]] for row in right for at in range(2)]
        made["every row with candidates"] = (("write_cells", {**write, "rows": right + wrong}),)
        made["one right row, again and again"] = (("write_cells", {**write, "rows": right[:1] * len(right)}),)
    return made


def _frozen(value: Any) -> str:
    return f'="{value}"' if isinstance(value, str) else f"={float(value or 0)!r}"


def _never() -> Any:
    raise AssertionError("no table")


async def solved(number: int) -> float:
    result = await played(number, reference_calls(problem(number)))
    return result.score if result.success else -1.0


@pytest.mark.parametrize("number", FIRST_OF_EACH_KIND)
async def test_the_reference_earns_1_and_no_cheat_more_than_a_twentieth(number: int) -> None:
    assert await solved(number) == 1.0
    for name, calls in cheats(number).items():
        result = await played(number, calls)
        assert result.score <= MAX_CHEAT, name
        assert not result.success, name


@pytest.mark.study
@pytest.mark.parametrize("number", THE_OTHERS)
async def test_so_it_is_in_the_other_tasks(number: int) -> None:
    await test_the_reference_earns_1_and_no_cheat_more_than_a_twentieth(number)


@pytest.mark.parametrize("number", range(NUM_TASKS))
def test_no_typed_value_is_right_in_all_variants(number: int) -> None:
    asked = problem(number).targets
    seen = [{repr(target.expected)} for target in asked]
    for variant in variants_of(*drawn(number)) if asked else ():
        assert [(one.sheet, one.cell) for one in variant.targets] == [(one.sheet, one.cell) for one in asked]
        for values, target in zip(seen, variant.targets, strict=True):
            values.add(repr(target.expected))
    constant = [cell_name(one.cell) for values, one in zip(seen, asked, strict=True) if len(values) == 1]
    assert constant == []


async def test_half_of_what_is_asked_for_earns_half() -> None:
    first, second = reference_calls(problem(0))
    result = await played(0, (first,))
    assert result.score == 0.5
    assert {part.name: part.value for part in result.subscores} == {"Net": 1.0, "Gross": 0.0}
    assert (await played(0, (second,))).score == 0.0  # its formulas read what was not written


def test_the_tasks_are_held_out_and_of_four_families() -> None:
    assert tasks.split == "held_out"
    assert len(tasks) == NUM_TASKS == 50
    assert {task.family for task in tasks} == {"formulas", "summaries", "cleaning", "lookups"}
    with pytest.raises(TasksetInvalid, match="is of benchmark sheet-50; its tasks only measure"):
        Taskset("mine", tasks.tasks[:2], "train")


async def test_a_number_beyond_the_tasks_is_refused() -> None:
    with pytest.raises(UpcycleError, match="sheet-50 has no task 50"):
        await workbook.play({"number": 50}).start()


def test_the_baseline_in_the_package_is_what_its_players_earn() -> None:
    table = json.loads(FILE.read_text())
    assert (table["anchor"], table["people"]) == ("scripted-5", 0)
    assert [row["player"] for row in table["players"]] == [one.name for one in PLAYERS]
    means = [row["reward"] for row in table["players"]]
    assert means == sorted(means)
    assert (means[0], means[-1]) == (0.0, 1.0)
    compared = (1, 10, 21, 30)  # one of each family
    for player, row in zip(PLAYERS, table["players"], strict=True):
        assert rewards(player, compared) == {str(number): row["rewards"][str(number)] for number in compared}


@pytest.mark.study
def test_so_is_the_whole_baseline() -> None:
    for player, row in zip(PLAYERS, json.loads(FILE.read_text())["players"], strict=True):
        assert rewards(player, range(NUM_TASKS)) == row["rewards"]
