"""Rows of data as tasks: `Taskset.from_dataset`."""

import csv
import io
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import date
from typing import Any

import pytest

from upcycle import Environment, Taskset
from upcycle.errors import TasksetInvalid, UnknownName, UpcycleError
from upcycle.task_rows import EnvironmentRef
from upcycle.tasks import MAX_TASKS

env = Environment("quiz")


@env.scenario("ask")
def ask(question: str, answer: str, points: int = 1) -> Generator[Any, Any, None]:
    said = yield question
    yield float(said == answer)


ROWS: list[dict[str, Any]] = [
    {"id": 7, "question": "2 + 2", "answer": "4", "points": 2, "topic": "sums", "source": None},
    {"id": 8, "question": "3 + 3", "answer": "6", "points": 1, "topic": "sums", "source": "book"},
]


def test_columns_that_are_called_like_arguments_are_arguments() -> None:
    made = Taskset.from_dataset(ROWS, "quiz", scenario=ask, ids="id", families="topic", split="held_out")
    assert [(task.slug, task.family, task.args) for task in made] == [
        ("7", "sums", {"question": "2 + 2", "answer": "4", "points": 2}),
        ("8", "sums", {"question": "3 + 3", "answer": "6", "points": 1}),
    ]
    assert (made.split, made.environment) == ("held_out", ask.environment)
    assert made.tasks[0].digest == ask.task(question="2 + 2", answer="4", points=2).digest


def test_columns_by_name_and_arguments_of_a_function() -> None:
    renamed = [{"q": "2 + 2", "a": 4}]

    def arguments(row: Mapping[str, Any]) -> dict[str, Any]:
        return {"question": row["q"], "answer": str(row["a"])}

    made = Taskset.from_dataset(renamed, "quiz", scenario="ask", environment=env, arguments=arguments)
    assert [task.args for task in made] == [{"question": "2 + 2", "answer": "4"}]
    columns = {"question": "q", "answer": "a"}
    away = EnvironmentRef("far", url="tcp://h:1")
    made = Taskset.from_dataset(renamed, "quiz", scenario="ask", environment=away, arguments=columns)
    assert [(task.environment, task.args) for task in made] == [(away, {"question": "2 + 2", "answer": 4})]
    named = Taskset.from_dataset(
        ROWS, "quiz", scenario=ask, ids=lambda row: f"q-{row['id']}", families=lambda row: row["topic"]
    )
    assert [task.slug for task in named] == ["q-7", "q-8"]


def test_of_an_environment_whose_arguments_are_not_known_every_column_is_one() -> None:
    away = EnvironmentRef("far", url="tcp://h:1")
    made = Taskset.from_dataset([{"id": "a", "x": [1]}], "far", scenario="s", environment=away, ids="id")
    assert [(task.slug, task.args) for task in made] == [("a", {"x": [1]})]


def test_cells_of_a_table_are_text_where_the_argument_is_text() -> None:
    table = "question,answer,points\n2 + 2,4,\n3 + 3,6,2\n"
    made = Taskset.from_dataset(csv.DictReader(io.StringIO(table)), "quiz", scenario=ask)
    assert [task.args for task in made] == [
        {"question": "2 + 2", "answer": "4"},
        {"question": "3 + 3", "answer": "6", "points": 2},
    ]


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        assert number <= MAX_TASKS, "it reads on after it has refused"
        yield {"question": str(number), "answer": ""}


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        ([], {}, "has 0 tasks"),
        ({"train": ROWS, "test": ROWS}, {}, "of type dict, of 'train', 'test'; pass its rows"),
        (["2 + 2"], {}, "row 1 is of type str, not a mapping"),
        ([{"question": "2"}], {}, "row 1: no column 'answer'; it has question"),
        ([*ROWS, {"question": "2", "anwser": "4"}], {}, "row 3: no column 'answer'; did you mean 'anwser'?"),
        (
            ROWS,
            {"arguments": {"query": "question"}},
            "row 1: ask: unknown argument 'query'; it takes question",
        ),
        (
            ROWS,
            {"arguments": {"question": "points", "answer": "answer"}},
            "row 1: ask.question: expected a s",
        ),
        (ROWS, {"arguments": lambda row: 3}, "row 1: the function of arguments returned int"),
        (ROWS, {"ids": "topic"}, "row 2: the same id, 'sums', as row 1"),
        (ROWS, {"ids": "uid"}, "row 1: no column 'uid' for the id; did you mean 'id'?"),
        (ROWS, {"ids": "source"}, "row 1: id None is no text"),
        ([ROWS[0], ROWS[0]], {}, "row 2: the same task as row 1; leave one out, or name a column of ids"),
        (rows(10**6), {}, f"row {MAX_TASKS + 1}: more than {MAX_TASKS} rows"),
    ],
)
def test_what_is_wrong_is_named_with_its_row(dataset: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TasksetInvalid) as refused:
        Taskset.from_dataset(dataset, "quiz", scenario=ask, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize("value", [date(2026, 1, 2), float("nan"), b"4", {1, 2}, "\ud800"])
def test_a_value_that_json_cannot_carry_is_named_with_its_argument(value: Any) -> None:
    away = EnvironmentRef("far", url="tcp://h:1")
    with pytest.raises(TasksetInvalid, match="row 1: argument 'when': JSON cannot carry this"):
        Taskset.from_dataset([{"x": 1, "when": value}], "far", scenario="s", environment=away)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("question,question\n1,2\n", "line 1: column 'question' occurs twice"),
        ("question,answer\n1,2,3\n", "line 2: not 2 cells"),
        ("question,answer\n\n\n1\n", "line 4: not 2 cells"),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_line(table: str, said: str) -> None:
    with pytest.raises(TasksetInvalid) as refused:
        Taskset.from_dataset(csv.DictReader(io.StringIO(table)), "quiz", scenario=ask)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Taskset.from_dataset(ROWS, "quiz", scenario="ask"), TasksetInvalid),
        (lambda: Taskset.from_dataset(ROWS, "quiz", scenario="aks", environment=env), UnknownName),
    ],
)
def test_a_scenario_that_is_not_there_is_refused(
    make: Callable[[], object], kind: type[UpcycleError]
) -> None:
    with pytest.raises(kind):
        make()
