"""Tasksets as .csv, and parts of a taskset."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from upcycle import Environment, Taskset
from upcycle.errors import TasksetInvalid, UnknownName
from upcycle.task_rows import EnvironmentRef, Task, canonical_json

WHERE = EnvironmentRef("shop", path="/shop/env.py")
ARGUMENTS: list[dict[str, object]] = [
    {"query": "500s, and more", "limit": 3, "deep": {"a": [1, None]}},
    {"query": "7", "limit": 7.5, "on": True},
    {"query": "", "text": "null", "quoted": '"x"'},
    {"slug": "an argument", "family": 1, "lines": "a\nb"},
    {"args.odd": 1, "": 2},
    {},
]


def shop(*arguments: dict[str, object], split: str = "held_out") -> Taskset:
    """A taskset of the scenario `ask` with these arguments."""
    tasks = [
        Task(WHERE, "ask", canonical_json(one), f"task-{at}", "even" if at % 2 == 0 else "odd")
        for at, one in enumerate(arguments)
    ]
    return Taskset("shop", tasks, split)  # type: ignore[arg-type]


def test_a_csv_holds_every_argument_with_its_type(tmp_path: Path) -> None:
    written = shop(*ARGUMENTS)
    written.to_file(tmp_path / "shop.csv")
    read = Taskset.from_file(tmp_path / "shop.csv")
    assert [task.args for task in read] == ARGUMENTS
    assert read == written


def test_a_csv_that_a_person_wrote(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = ["scenario,environment,path,query,limit"]
    rows += [f"ask,shop,/shop/env.py,{arguments}" for arguments in ("the 500s,3", "all,")]
    path.write_text("\n".join(rows))
    read = Taskset.from_file(path)
    assert (read.name, read.split, read.environment) == ("mine", "train", WHERE)
    assert [task.args for task in read] == [{"query": "the 500s", "limit": 3}, {"query": "all"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "mine.csv:1: the columns are none"),
        ("slug,query\na,b\n", "mine.csv:1: the columns are slug, query"),
        ("scenario,environment,q,q\nask,shop,1,2\n", "mine.csv:1: column 'q' occurs twice"),
        ("scenario,environment,q\nask,shop,1\nask,shop,1,2\n", "mine.csv:3: not 3 cells"),
        ("scenario,environment,q\nask,shop\n", "mine.csv:2: not 3 cells"),
        ("scenario,environment,q\nask,,1\n", "mine.csv:2: no environment"),
        ("scenario,environment,q\n,shop,1\n", "mine.csv:2: no scenario"),
        ("scenario,environment,args\nask,shop,[1]\n", "mine.csv:2: column 'args' is no JSON object"),
        ('scenario,environment,q\nask,shop,"1\n', "mine.csv:1: not CSV"),
        ("scenario,environment,split\na,e,train\na,e,held_out\n", "mine.csv:3: splits held_out and train"),
        ("scenario,environment\n", "has 0 tasks"),
        ('scenario,"environment\n', "mine.csv:1: not CSV"),
        ("scenario,environment,q\nask,shop,caf\udce9\n", "is not UTF-8"),
    ],
)
def test_a_csv_that_is_no_taskset_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(TasksetInvalid) as refused:
        Taskset.from_file(path)
    assert said in str(refused.value)


def test_parts_of_a_taskset_keep_their_order_and_split() -> None:
    whole = shop({"n": 0}, {"n": 1}, {"n": 2})
    assert [task.slug for task in whole.filter(lambda task: task.family == "even")] == ["task-0", "task-2"]
    assert [task.slug for task in whole.filter(["task-2", "task-0"], name="some")] == ["task-0", "task-2"]
    rest = whole.exclude("task-1", name="rest")
    assert ([task.slug for task in rest], rest.name, rest.split) == (["task-0", "task-2"], "rest", "held_out")
    with pytest.raises(UnknownName, match="has no task 'task-9'"):
        whole.exclude(["task-9"])
    with pytest.raises(TasksetInvalid, match="0 tasks"):
        whole.filter(lambda task: False)


def test_a_taskset_of_a_scenario_survives_a_csv(tmp_path: Path) -> None:
    env = Environment("small")

    @env.scenario("ask")
    async def ask(query: str, limit: int = 3) -> AsyncGenerator[Any, Any]:
        yield query
        yield 1.0

    taskset = Taskset("small", [ask.task(query="12", limit=4), ask.task(query="é, ü")])
    taskset.to_file(tmp_path / "t.csv")
    assert Taskset.from_file(tmp_path / "t.csv", "small").digest == taskset.digest


def test_a_csv_of_a_spreadsheet_and_lines_with_odd_separators_are_read(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("scenario,environment,q\nask,shop,NaN\n", encoding="utf-8-sig")
    assert Taskset.from_file(table).tasks[0].args == {"q": "NaN"}
    whole = shop({"n": "a\u2028b\u0085c"})
    whole.to_file(tmp_path / "t.jsonl")
    assert Taskset.from_file(tmp_path / "t.jsonl").tasks[0].args == {"n": "a\u2028b\u0085c"}


def test_a_line_that_is_no_json_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n\n{")
    with pytest.raises(TasksetInvalid, match=r"t\.jsonl:3"):
        Taskset.from_file(tmp_path / "t.jsonl")
